"""The TPU of a stack is taken down when nothing runs any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from localcloud.testing import Client
from tests.unit.tpustack.conftest import Done, Run
from tpu_agent.jobs.queue import Queue
from tpu_core import paths
from tpustack.cloud.google import Google
from tpustack.errors import UsageError
from tpustack.jobs.queue import require_idle_stop

LIMITS = "\n  tpu-stack:limits: {idleMinutes: 30}"


@pytest.fixture
def submit(
    run: Run, client: Client, queue: Queue, project: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Submits to a stack whose bucket is the queue's."""
    monkeypatch.chdir(project)
    monkeypatch.setattr("tpustack.jobs.queue.Google", lambda: Google(client.session))

    def command(*arguments: str, limits: str = LIMITS) -> Done:
        file = project / "stacks" / "Pulumi.local.yaml"
        text = file.read_text()
        named = f"tpu-stack:bucket: {{name: {queue.store.bucket}}}"
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


def test_idle_stop_is_refused_on_vertex() -> None:
    with pytest.raises(UsageError, match="Vertex AI makes its own TPU"):
        require_idle_stop("dev", managed=True)
