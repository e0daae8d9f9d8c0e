"""A lock is released only if its holder is dead for sure: neither age nor a number proves it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pulumi import automation

import tpu_core.process
from tpustack.errors import TpustackError
from tpustack.recovery.locks import (
    Lock,
    LockedError,
    Note,
    locked_message,
    locks_in,
    run_of,
    unknown,
)
from tpustack.recovery.repair import Recovery

# As the engine's backend for buckets and folders says it.
REFUSAL = """error: the stack is currently locked by 1 lock(s). Either wait for the other
process(es) to end or delete the lock file with `pulumi cancel`.
  gs://bucket/.pulumi/locks/organization/p/dev/5f.json: created by ada@laptop (pid 42) at \
2026-11-21T10:00:00Z"""
SINCE = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
RUN = {
    "GITHUB_API_URL": "https://api.github.com",
    "GITHUB_REPOSITORY": "me/mine",
    "GITHUB_RUN_ID": "7",
    "GITHUB_RUN_ATTEMPT": "2",
}
ADDRESS = "https://api.github.com/repos/me/mine/actions/runs/7/attempts/2"
LOCKS = ".pulumi/locks/organization/p/dev"


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(["sleep", "600"], text=True)
    yield process
    process.kill()
    process.wait()


class State:
    """A backend in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables = {"PULUMI_BACKEND_URL": f"file://{root}"}

    def note(self, process: subprocess.Popen[str], *command: str, **variables: str) -> Note:
        made = Note(process, command or ("up", "--yes"), {**self.variables, **variables})
        made.write()
        return made

    def lock(self, process: int, age: timedelta = timedelta(0), **says: Any) -> Lock:
        path = self.root / LOCKS / f"{process}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}", encoding="utf-8")
        lock = Lock(
            # As the engine writes it.
            f"file://{path}?no_tmp_dir=true",
            "ada",
            socket.gethostname(),
            process,
            datetime.now(timezone.utc) - age,
        )
        return replace(lock, **says)

    def killed(self) -> subprocess.Popen[str]:
        """An engine that was noted, and killed."""
        process = subprocess.Popen(["sleep", "600"], text=True)
        self.note(process)
        process.kill()
        process.wait()
        return process

    def recovery(self, ended: Callable[[str], bool] = unknown) -> Recovery:
        workspace = SimpleNamespace(pulumi_command=None, work_dir=".", env_vars=self.variables)
        return Recovery("dev", cast(automation.Workspace, workspace), lambda line: None, ended)

    def notes(self) -> list[Path]:
        return sorted(self.root.glob(".tpustack/holders/*"))


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


def test_the_engines_refusal_says_whose_the_lock_is() -> None:
    (lock,) = locks_in(REFUSAL)
    assert (lock.user, lock.host, lock.pid, lock.since) == ("ada", "laptop", 42, SINCE)
    message = locked_message("dev", [lock])
    for part in (
        "ada@laptop",
        "process 42",
        "10:00:00 UTC",
        "`tpustack recover --yes --stack dev`",
    ):
        assert part in message


@pytest.mark.parametrize("age", [timedelta(0), timedelta(seconds=7300), timedelta(days=30)])
def test_a_lock_without_a_note_is_left_alone_however_old(state: State, age: timedelta) -> None:
    """As of a plain `pulumi up`, here or elsewhere: its process may be in another container."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    for host in (socket.gethostname(), "runner"):
        assert not state.recovery().are_orphaned([state.lock(gone.pid, age, host=host)])
    assert not state.recovery().are_orphaned(locks_in("error: [409] Conflict: in progress."))


def test_an_engine_that_waits_for_capacity_for_hours_keeps_its_lock(
    state: State, engine: subprocess.Popen[str]
) -> None:
    began = datetime.now(timezone.utc) - timedelta(seconds=7300)
    state.note(engine)
    (path,) = state.notes()
    written = json.loads(path.read_text(encoding="utf-8"))
    written["since"] = began.isoformat(timespec="seconds")
    path.write_text(json.dumps(written), encoding="utf-8")
    lock = state.lock(engine.pid, since=began)
    assert not state.recovery(ended=lambda run: True).are_orphaned([lock])
    engine.kill()
    engine.wait()
    assert state.recovery().are_orphaned([lock])


def test_a_zombie_engine_counts_as_dead(state: State, engine: subprocess.Popen[str]) -> None:
    """As in a container, whose first process asks late or never."""
    state.note(engine)
    lock = state.lock(engine.pid)
    engine.kill()
    os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
    assert state.recovery().are_orphaned([lock])


@pytest.mark.parametrize("place", ["other-boot pid:[4026531836]", "", None])
def test_only_the_forge_knows_about_engines_of_other_boots_and_namespaces(
    place: str | None, state: State, engine: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state.note(engine, **RUN)
    lock = state.lock(engine.pid)
    engine.kill()
    engine.wait()
    here = place if place is not None else tpu_core.process.place().replace("pid:[", "pid:[9")
    monkeypatch.setattr(tpu_core.process, "place", lambda: here)
    assert not state.recovery().are_orphaned([lock])
    asked: list[str] = []
    assert state.recovery(ended=lambda run: not asked.append(run)).are_orphaned([lock])  # type: ignore[func-returns-value]
    assert asked == [ADDRESS]


def test_from_within_another_process_namespace_a_run_of_this_one_is_not_called_dead(
    state: State, engine: subprocess.Popen[str]
) -> None:
    """As in a container that shares the host's name: it sees none of the host's processes."""
    unshare = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets this user make no process namespace")
    state.note(engine)
    (path,) = state.notes()
    asks = (
        "import sys; from tpu_core.process import began, parse;"
        "held = parse(open(sys.argv[1]).read());"
        "print(began(held.process) is None, held.is_gone())"
    )
    command = [*unshare, sys.executable, "-c", asks, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "False"]


def test_a_reused_process_number_is_not_the_noted_engine(
    state: State, engine: subprocess.Popen[str]
) -> None:
    """Two containers of one name give their processes the same numbers."""
    dead = state.killed()
    for wrong in (
        {"host": "another"},
        {"pid": dead.pid + 1},
        {"since": datetime.now(timezone.utc) + 10 * MINUTE},
        {"since": datetime.now(timezone.utc) - MINUTE},
    ):
        assert not state.recovery().are_orphaned([state.lock(dead.pid, **wrong)])
    assert state.recovery().are_orphaned([state.lock(dead.pid)])
    state.note(engine)
    assert not state.recovery().are_orphaned([state.lock(dead.pid), state.lock(engine.pid)])


@pytest.mark.parametrize(
    "damaged",
    ["", "[]", "null", '{"format": 1}', '{"format": 2', "format", "since", "zone", "\x00"],
)
def test_a_note_that_is_damaged_or_of_another_format_proves_nothing(
    damaged: str, state: State
) -> None:
    dead = state.killed()
    (path,) = state.notes()
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["format"] == 1
    other = {
        "format": json.dumps({**whole, "format": 2}),
        "since": json.dumps({**whole, "since": "yesterday"}),
        "zone": json.dumps({**whole, "since": "0001-01-01T00:00:00+23:00"}),
    }
    path.write_text(other.get(damaged, damaged), encoding="utf-8")
    assert not state.recovery().are_orphaned([state.lock(dead.pid)])


def test_an_engine_is_noted_for_as_long_as_it_may_hold_a_lock(
    state: State, engine: subprocess.Popen[str]
) -> None:
    for command in (("preview",), ("stack", "export"), ("stack", "output", "--json")):
        state.note(engine, *command)
    assert state.notes() == []
    ended = subprocess.Popen(["true"], text=True)
    note = state.note(ended, "stack", "import", "--file", "x")
    assert len(state.notes()) == 1
    ended.wait()
    note.remove()
    assert state.notes() == []
    killed = state.note(engine, "destroy")
    killed.remove()
    assert len(state.notes()) == 1
    engine.kill()
    engine.wait()
    killed.remove()
    assert len(state.notes()) == 1


def test_a_backend_that_takes_no_note_stops_no_engine(engine: subprocess.Popen[str]) -> None:
    for url in ("file:///proc/no", "s3://bucket", "https://api.example.com", "file://"):
        note = Note(engine, ("up",), {"PULUMI_BACKEND_URL": url})
        note.write()
        note.remove()


def test_exactly_the_locks_that_were_asked_about_are_released(state: State) -> None:
    asked = state.lock(1)
    state.lock(2)
    state.recovery().release([asked])
    assert [path.name for path in (state.root / LOCKS).iterdir()] == ["2.json"]
    state.recovery().release([asked])
    (state.root / LOCKS / "3.json").mkdir()
    with pytest.raises(TpustackError, match="can't be released"):
        state.recovery().release([replace(asked, url=asked.url.replace("1.json", "3.json"))])


def test_a_dead_lock_goes_with_its_note_and_one_that_came_since_stays(
    state: State, engine: subprocess.Popen[str]
) -> None:
    dead, third = state.lock(state.killed().pid), state.lock(engine.pid)
    state.note(engine)
    refusals = [[dead], [third]]

    def operation() -> None:
        raise LockedError(refusals.pop(0))

    with pytest.raises(LockedError) as refused:
        state.recovery().when_unlocked(operation)
    assert refused.value.locks == [third]
    assert [path.name for path in (state.root / LOCKS).iterdir()] == [f"{engine.pid}.json"]
    (left,) = state.notes()
    assert json.loads(left.read_text(encoding="utf-8"))["process"] == engine.pid


@pytest.mark.parametrize(
    "url",
    [
        "file:///.pulumi/locks/organization/p/prod/2.json",
        "file:///.pulumi/locks/organization/p/dev/../prod/2.json",
        "file:///.pulumi/stacks/p/dev.json",
        "file:///elsewhere",
    ],
)
def test_files_that_are_not_locks_of_the_stack_are_not_deleted(url: str, state: State) -> None:
    """A user's name in a lock may have lines of its own, which read like more locks."""
    forged = replace(state.lock(2), url=url)
    with pytest.raises(LockedError):
        state.recovery().release([forged, state.lock(2)])
    assert (state.root / LOCKS / "2.json").exists()


def test_a_run_is_named_as_its_forge_names_it() -> None:
    gitlab = {"CI_API_V4_URL": "https://git.example.com/api/v4", "CI_PROJECT_ID": "5"}
    assert run_of(RUN) == ADDRESS
    assert run_of({**gitlab, "CI_JOB_ID": "9"}) == f"{gitlab['CI_API_V4_URL']}/projects/5/jobs/9"
    assert run_of({}) == run_of(gitlab) == ""
