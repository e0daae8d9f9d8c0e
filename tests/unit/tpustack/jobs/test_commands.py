"""The commands that look after jobs: what they print, and how they end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from localcloud.testing import Client
from tests.unit.tpustack.conftest import Run
from tpu_agent.jobs.queue import Job, Outcome, Queue, Spec
from tpu_core import paths
from tpustack import console
from tpustack.cloud.google import Google
from tpustack.jobs import command
from tpustack.jobs.job import job_log


def started(job: Job) -> Job:
    return job.started("42", "vm", "t", time.time())


def ended(queue: Queue, name: str, outcome: Outcome) -> None:
    queue.change(name, lambda job: started(job).after_try(outcome, time.time()))


@pytest.fixture
def filled(queue: Queue) -> Queue:
    """One job that runs, three that wait, one that has failed."""
    more = {"low": {"priority": -1}, "blocked": {"after": ("runs",)}}
    for count, name in enumerate(["bad", "runs", "low", "first", "blocked"]):
        spec = Spec(f"echo {name}", **more.get(name, {}))  # type: ignore[arg-type]
        queue.add(Job(name, name, spec, time.time() - 60 + count, by="ada@here"))
    ended(queue, "bad", Outcome("exited", 7))
    queue.change("runs", started)
    return queue


def test_list_shows_running_then_queued_then_ended_jobs(job: Run, filled: Queue) -> None:
    rows = json.loads(job("list", "--json").out)
    assert [(row["name"], row["state"], row["place"]) for row in rows] == [
        ("runs", "running", None),
        ("first", "queued", 1),
        ("low", "queued", 2),
        ("blocked", "queued", None),
        ("bad", "failed", None),
    ]
    assert "failed (7)" in job("list").out


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_list_of_jobs_fits_the_terminal_and_is_whole_in_a_pipe(
    job: Run, filled: Queue, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    filled.add(Job("long" * 15, "long", Spec("python -m train " * 9), time.time(), by="ada@here"))
    lines = job("list").out.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("job", "runs", "first", "long" * 15, "low", "blocked", "bad")
    ]
    monkeypatch.setattr(console, "columns", lambda: columns)
    assert max(map(len, job("list").out.splitlines())) <= columns


def test_a_job_is_shown_with_its_tries(job: Run, filled: Queue) -> None:
    said = job("show", "bad").out
    assert said.startswith("bad: failed (exit code 7)\n")
    assert "on vm, exited after 0 s, exit code 7" in said
    assert json.loads(job("show", "bad", "--json").out)["tries"][0]["machine"] == "vm"


def test_stop_ends_a_queued_job_at_once_and_asks_a_running_one(job: Run, filled: Queue) -> None:
    assert job("stop", "first").out == "first is stopped\n"
    assert job("stop", "runs").out == "runs is stopping\n"
    assert job("stop", "bad").out == "bad is failed\n"
    running = filled.read("runs")
    assert running is not None
    assert running.stop
    assert (filled.store.look(paths.BELL)) is not None


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome("exited", 0), 0),
        (Outcome("exited", 7), 7),
        (Outcome("stopped"), 143),
        (Outcome("timed-out"), 124),
        (Outcome("setup", 1, "no"), 1),
    ],
    ids=lambda value: str(getattr(value, "why", value)),
)
def test_waiting_and_following_end_with_the_jobs_exit_code(
    job: Run, queue: Queue, outcome: Outcome, code: int
) -> None:
    queue.add(Job("one", "one", Spec("true", timeout=1.0), 1.0))
    ended(queue, "one", outcome)
    assert job("wait", "one").code == code
    assert job("logs", "one", "--follow").code == code
    assert job("logs", "one").code == 0


def test_resubmit_refuses_an_invalid_job_name(job: Run, filled: Queue) -> None:
    before = set(filled.summaries())
    for name in ("../x", ""):
        done = job("resubmit", next(iter(before)), "--name", name)
        assert (done.code, f"--name: {name!r} is not a job name" in done.err) == (2, True)
    assert set(filled.summaries()) == before


def test_wait_gives_up_after_its_timeout(job: Run, filled: Queue) -> None:
    done = job("wait", "first", "--timeout", "0.1s")
    assert done.code == 1
    assert "first is still queued after 0.1 s" in done.err


def test_a_log_comes_byte_by_byte_over_all_tries(queue: Queue) -> None:
    queue.add(Job("one", "one", Spec("true"), 1.0))
    pieces = [(1, 0, b"a\xff\n"), (1, 3, b"b" * 1_000_000), (2, 0, b"\nlast")]
    for number, offset, data in reversed(pieces):
        queue.store.write(paths.piece("one", number, offset), data, generation=0)
    assert b"".join(job_log(queue, "one")) == b"".join(data for _, _, data in pieces)


def test_a_log_as_json_has_an_object_for_each_line(job: Run, queue: Queue) -> None:
    queue.add(Job("one", "one", Spec("true"), 1.0))
    for offset, data in ((0, b"a\xff"), (2, b"b\nla"), (6, b"st")):
        queue.store.write(paths.piece("one", 1, offset), data, generation=0)
    lines = job("logs", "one", "--json").out.splitlines()
    assert [json.loads(line)["line"] for line in lines] == ["a\\xffb", "last"]


def test_artifacts_are_listed_and_downloaded_but_not_out_of_the_folder(
    job: Run, queue: Queue, tmp_path: Path
) -> None:
    queue.add(Job("one", "one", Spec("true"), 1.0))
    queue.store.write(paths.piece("one", 1, 0), b"log")
    queue.store.write("jobs/one/artifacts/sub/a.bin", b"\0\1")
    queue.store.write("jobs/one/model/x", b"m")
    listed = json.loads(job("artifacts", "one", "--json").out)
    assert [(one["name"], one["bytes"]) for one in listed] == [
        ("artifacts/sub/a.bin", 2),
        ("model/x", 1),
    ]
    assert job("artifacts", "one", "--output", str(tmp_path / "out")).code == 0
    assert (tmp_path / "out" / "artifacts" / "sub" / "a.bin").read_bytes() == b"\0\1"
    queue.store.write("jobs/one/../../evil", b"e")
    done = job("artifacts", "one", "--output", str(tmp_path / "out"))
    assert done.code == 1
    assert "its name leads out of" in done.err
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("verb", ["show", "logs", "stop", "wait", "artifacts", "resubmit"])
def test_a_missing_job_is_named(job: Run, queue: Queue, verb: str) -> None:
    gone, wrong = job(verb, "gone"), job(verb, "A/B")
    assert (gone.code, wrong.code) == (2, 2)
    assert "there is no job gone in gs://a-bucket" in gone.err
    assert "is not a job name" in wrong.err


def test_a_damaged_record_hides_no_other_job(job: Run, filled: Queue) -> None:
    filled.store.write(paths.record("torn"), b"{", summary={"state": "queued"})
    listed = job("list")
    assert "queue/torn.json is set aside: its format is None" in listed.err
    assert "first" in listed.out
    assert "queue/torn.json is set aside: it is not JSON" in job("show", "torn").err
    assert job("show", "first").code == 0


@pytest.mark.parametrize("verb", ["list", "show x", "logs x", "stop x", "wait x", "artifacts x"])
def test_every_command_explains_a_missing_bucket_and_a_missing_role(
    run: Run, queue: Queue, client: Client, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    gone = run("job", *verb.split(), "--bucket", "gs://no-such-bucket")
    assert gone.code == 2
    assert "there is no bucket gs://no-such-bucket: the stack is down" in gone.err
    stranger = client.as_member("user:eve@example.com")
    monkeypatch.setattr("tpustack.jobs.queue.Google", lambda: Google(stranger.session))
    denied = run("job", *verb.split(), "--bucket", "gs://a-bucket")
    assert denied.code == 1
    assert "ask for roles/storage.objectUser on it" in denied.err
    assert "Traceback" not in denied.err + gone.err


def test_binary_logs_and_very_long_lines_are_printed_whole(
    filled: Queue,
) -> None:
    text = b"\xff\x00\n" + b"x" * (1 << 20) + b"\nend"
    for offset in range(0, len(text), 400_000):
        piece = paths.piece("bad", 1, offset)
        filled.store.write(piece, text[offset : offset + 400_000])
    assert b"".join(job_log(filled, "bad")) == text
    lines = [json.loads(line)["line"] for line in command._as_lines(job_log(filled, "bad"))]
    assert lines == ["\\xff\x00", "x" * (1 << 20), "end"]
