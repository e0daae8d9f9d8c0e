"""A stack that is down is brought up for a job, and taken down when nothing runs any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.services.tpu.api import NODE
from localcloud.testing import Client
from tests.unit.tpustack.conftest import Done, Run
from tpu_agent.jobs.queue import Queue
from tpu_core import paths
from tpu_infra.names import names_of
from tpu_infra.settings import StackSettings
from tpustack.cloud.google import Google
from tpustack.errors import UsageError
from tpustack.jobs.queue import require_on_demand
from tpustack.stacks import load

LIMITS = "\n  tpu-stack:limits: {idleMinutes: 30}"


class Engine:
    """An engine whose `up` makes the machine that looks after the queue."""

    def __init__(self, queue: Queue) -> None:
        self.did: list[str] = []
        self._queue = queue

    def select(self, stack: str) -> Engine:
        self.did.append(f"select {stack}")
        return self

    def stack(self, stack: str) -> Engine:
        self.did.append(f"stack {stack}")
        return self

    def refresh(self, line: Callable[[str], None]) -> None:
        self.did.append("refresh")

    def up(self, line: Callable[[str], None]) -> None:
        line("the engine's output")
        self.did.append(f"up with {len(self._queue.summaries())} jobs")


@pytest.fixture
def engine(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine(queue)
    monkeypatch.setattr("tpustack.engine.backend.users_own", lambda: made)
    return made


@pytest.fixture
def submit(
    run: Run, client: Client, queue: Queue, project: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Submits to a stack whose bucket is the queue's."""
    monkeypatch.chdir(project)
    monkeypatch.setattr("tpustack.jobs.queue.Google", lambda: Google(client.session))

    def command(*arguments: str, limits: str = LIMITS, bucket: str = "") -> Done:
        file = project / "stacks" / "Pulumi.local.yaml"
        text = file.read_text()
        named = f"tpu-stack:bucket: {{name: {bucket or queue.store.bucket}}}"
        more = f"{named}\n  tpu-stack:jobs: {{enabled: true}}{limits}"
        file.write_text(
            text.replace("tpu-stack:bucket:\n    forceDestroy: true\n    softDeleteDays: 0", more)
        )
        return run("job", "submit", "-c", "true", "--stack", "local", *arguments)

    return command


@pytest.fixture
def machine(queue: Queue) -> None:
    """One that looks after the queue."""
    queue.store.write(paths.lease("t"), b"", summary={"name": "m"})


@pytest.fixture
def tpu(cloud: LocalCloud, submit: Callable[..., Done]) -> str:
    """The stack's TPU is there."""
    projects.enable_services(cloud.cloud, projects.DEFAULT_PROJECT, ("tpu.googleapis.com",))
    settings = load("local")
    short = names_of(settings, "local").tpu
    name = f"projects/{settings.project}/locations/{settings.zone}/nodes/{short}"
    cloud.cloud.store.put(NODE, name, {"name": name, "state": "STOPPED"})
    return name


def test_a_stack_that_is_down_is_brought_up_before_the_job_is_queued(
    submit: Callable[..., Done], engine: Engine
) -> None:
    done = submit("--create")
    assert done.code == 0, done.err
    # Pulumi's selection stays.
    assert engine.did == ["stack local", "refresh", "up with 0 jobs"]
    assert "pulumi up for the stack local: no machine runs the jobs" in done.err
    assert "warning" not in done.err


def test_a_stack_that_was_never_up_is_not_refreshed(
    submit: Callable[..., Done], engine: Engine, project: Path
) -> None:
    done = submit("--create", bucket="there-is-none-yet")
    assert "pulumi up for the stack local: it has no bucket yet" in done.err
    assert engine.did == ["select local", "up with 0 jobs"]


def test_a_stack_that_is_up_is_left_alone(
    submit: Callable[..., Done], engine: Engine, machine: None, tpu: str
) -> None:
    done = submit("--create")
    assert (done.code, engine.did, done.err) == (0, [], "")


def test_create_recreates_a_tpu_that_a_limit_deleted(
    submit: Callable[..., Done], engine: Engine, machine: None, tpu: str, cloud: LocalCloud
) -> None:
    cloud.cloud.store.delete(NODE, tpu)
    assert "is gone" in submit("--create").err
    assert engine.did[1:] == ["refresh", "up with 0 jobs"]


def test_create_finds_a_tpu_in_a_fallback_zone(
    submit: Callable[..., Done],
    engine: Engine,
    machine: None,
    tpu: str,
    cloud: LocalCloud,
    project: Path,
) -> None:
    cloud.cloud.store.delete(NODE, tpu)
    elsewhere = "us-central1-c"
    moved = tpu.replace(load("local").zone, elsewhere)
    cloud.cloud.store.put(NODE, moved, {"name": moved, "state": "READY"})
    file = project / "stacks" / "Pulumi.local.yaml"
    queued = f"tpu-stack:tpu:\n    queued: {{fallbackZones: [{elsewhere}]}}"
    file.write_text(file.read_text().replace("tpu-stack:tpu:", queued))
    done = submit("--create")
    assert (done.code, engine.did, done.err) == (0, [], "")


def test_create_runs_no_engine_for_wrong_input(submit: Callable[..., Done], engine: Engine) -> None:
    assert submit("--create", "--env", "1X=2").code == 2
    assert engine.did == []


def test_idle_stop_is_written_to_the_bucket(
    submit: Callable[..., Done], queue: Queue, machine: None
) -> None:
    assert submit("--idle-stop", "15").code == 0
    found = queue.store.read(paths.IDLE_STOP)
    assert found is not None
    assert json.loads(found[0]) == {"format": 1, "minutes": 15}


def test_idle_stop_requires_limits_or_recovery(submit: Callable[..., Done], queue: Queue) -> None:
    done = submit("--idle-stop", "15", limits="")
    assert done.code == 2
    assert "--idle-stop: the machine of the stack local may not take its TPU down" in done.err
    assert queue.summaries() == {}


def test_idle_stop_is_refused_where_nothing_ends_an_idle_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = SimpleNamespace(is_compute=True)
    monkeypatch.setattr("tpustack.stacks.load", lambda stack: limited)
    with pytest.raises(UsageError, match=r"limits\.timeToLiveHours ends the TPU"):
        require_on_demand("mine", 15, managed=False)


def test_create_warns_if_nothing_takes_the_tpu_down(
    submit: Callable[..., Done], engine: Engine
) -> None:
    done = submit("--create", limits="")
    assert "warning: nothing deletes the TPU of the stack local after the job" in done.err


def test_on_compute_engine_the_warning_names_the_one_limit_that_there_is(
    submit: Callable[..., Done], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StackSettings, "is_compute", True)
    assert "after the job: set limits.timeToLiveHours\n" in submit("--create", limits="").err


def test_create_and_idle_stop_are_refused_on_vertex() -> None:
    with pytest.raises(UsageError, match="Vertex AI makes its own TPU"):
        require_on_demand("dev", 15, managed=True)
