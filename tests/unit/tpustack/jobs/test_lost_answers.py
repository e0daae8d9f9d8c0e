"""A submission whose answers are lost, or that is killed at any call, leaves no job in between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.cloud import Fault
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.tpustack.conftest import Run
from tests.unit.tpustack.jobs.conftest import JOBS
from tests.unit.tpustack.jobs.test_hostile_bucket import PLACE
from tpu_agent.jobs.queue import QUEUED, Queue, Spec
from tpu_core.bucket import Bucket
from tpustack.jobs import job as waiting, vertex
from tpustack.jobs.job import stop_job, submit
from tpustack.jobs.vertex import start

CREATE = "*.customJobs.create"
SUBMIT = ("submit", "--on", "vertex", "--stack", "dev", "--command", "true", "--name", "one")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets eleven minutes pass for who looks at jobs."""

    def passed() -> None:
        monkeypatch.setattr(vertex, "time", SimpleNamespace(time=lambda: time.time() + 660))

    return passed


@pytest.mark.parametrize("status", [0, 503])
def test_a_custom_job_whose_answer_was_lost_is_found_by_its_label(
    run: Run, queue: Queue, cloud: LocalCloud, client: Client, machines: FakeMachines,
    deployed: object, status: int,
) -> None:  # fmt: skip
    cloud.cloud.faults.add(Fault(CREATE, status=status, count=1, carried_out=True))
    done = run("job", *SUBMIT)
    assert done.code == 1
    assert "it is not known whether Vertex AI has the job one" in done.err
    (made,) = client.get(JOBS)["customJobs"]
    assert waiting.read_job(queue, "one").custom_job == made["name"]
    again = run("job", *SUBMIT)
    assert "the same job is there already: one" in again.err
    assert len(client.get(JOBS)["customJobs"]) == 1


def test_a_job_that_vertex_ai_never_had_ends_with_the_reason(
    run: Run, queue: Queue, cloud: LocalCloud, machines: FakeMachines, deployed: object,
    later: Callable[[], None],
) -> None:  # fmt: skip
    cloud.cloud.faults.add(Fault(CREATE, status=503, count=1))
    assert run("job", *SUBMIT).code == 1
    assert waiting.read_job(queue, "one").state == QUEUED
    later()
    found = waiting.read_job(queue, "one")
    assert (found.state, found.code) == ("failed", 1)
    assert "ended before Vertex AI had it" in found.reason


def test_a_running_job_is_not_ended_because_vertex_ai_does_not_list_it(
    queue: Queue, client: Client, deployed: object, later: Callable[[], None]
) -> None:
    job = submit(queue, Spec("true", vertex=PLACE), "one", None)
    later()
    queue.change("one", lambda it: it.started("42", "m", "vertex", 1.0))
    assert vertex.refreshed(queue, job).state == "running"
    assert waiting.read_job(queue, "one").state == "running"


class Killed(BaseException):
    """What a process that is killed does not survive."""


def killed_at(client: Client, number: int, *, before: bool, other: Callable[[], object]) -> Any:
    """A session that ends its process at one of its calls; another process acts just before."""
    calls: Iterator[int] = iter(range(1000))
    real: Any = client.session

    def send(*request: Any) -> Any:
        mine = next(calls)
        if mine == number:
            other()
        if mine == number and before:
            raise Killed
        answer = real(*request)
        if mine == number:
            raise Killed
        return answer

    return send


def look(queue: Queue) -> None:
    if queue.read("one"):
        waiting.read_job(queue, "one")


def end(queue: Queue) -> None:
    if queue.read("one"):
        stop_job(queue, "one")


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("other", [look, end])
@pytest.mark.parametrize("number", range(8))
def test_a_submission_that_is_killed_leaves_one_custom_job_or_none_and_a_job_that_ends(
    queue: Queue, client: Client, machines: FakeMachines, deployed: object, number: int,
    before: bool, other: Callable[[Queue], None], monkeypatch: pytest.MonkeyPatch,
    later: Callable[[], None],
) -> None:  # fmt: skip
    from tpustack.cloud.google import Google

    google = Google(killed_at(client, number, before=before, other=lambda: other(queue)))
    mine = Queue(Bucket(queue.store.bucket, google.exchange), print)
    monkeypatch.setattr("tpustack.jobs.vertex.Google", lambda: google)
    with contextlib.suppress(Killed):
        start(mine, submit(mine, Spec("true", vertex=PLACE), "one", None), PLACE)
    later()
    job = queue.read("one")
    made = client.get(JOBS).get("customJobs", [])
    assert len(made) <= 1
    if job is None:
        assert made == []
        return
    job = waiting.read_job(queue, "one")
    # What was stopped before is over; its container, if it gets one, finds that out and ends.
    assert job.is_over or [one["name"] for one in made] == [job.custom_job]
    if other is look and made:
        assert job.state == QUEUED
