"""A job in a container of Vertex AI: its tries, its variables, what ends it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import pytest

from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore
from tpu_agent.jobs.attempt import Attempt
from tpu_agent.jobs.hosts import Follower, World
from tpu_agent.jobs.queue import Job, Outcome, Queue, Spec
from tpu_agent.jobs.vertex import Managed, content_of, tpu_of

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux")
WHERE = {"tpu": "v2-8", "region": "us-central1"}
CONFIG = '{"project": "tenant", "zone": "us-central1-b", "tpu_node_name": "node"}'
ENVIRONMENT = {"TPU_CONFIG": CONFIG, "CLOUD_ML_JOB_ID": "42"}


@pytest.fixture(autouse=True)
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the record at each step."""
    monkeypatch.setattr("tpu_agent.jobs.vertex._LOOK", 0.0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(Bucket(Clock()))


@pytest.fixture
def queue(store: MemoryStore) -> Queue:
    return Queue(store, print)


def added(queue: Queue, **more: object) -> Job:
    job = Job("one", "id", Spec("true", vertex=WHERE, **more), 1.0)  # type: ignore[arg-type]
    queue.add(job)
    return job


def read(queue: Queue) -> Job:
    job = queue.read("one")
    assert job is not None
    return job


def container(
    store: MemoryStore, folder: Path, start: Callable[[Attempt], None],
    sleep: Callable[[float], None] = lambda _: None, environment: Mapping[str, str] = ENVIRONMENT,
) -> Managed:  # fmt: skip
    return Managed(store, folder, World(environment, start, sleep, time.time, lambda _: None))


def ends_with(*codes: int) -> Callable[[Attempt], None]:
    """Let one try after the other end at once."""
    left = list(codes)

    def start(attempt: Attempt) -> None:
        attempt.log.write_text(f"try {len(codes) - len(left) + 1}\n")
        attempt.finish(Outcome("exited", left.pop(0)))

    return start


class Running:
    """Tries that run until they are to end."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self._locks: list[IO[str]] = []

    def begin(self, attempt: Attempt) -> None:
        """Hold the lock, as a supervisor does while it lives."""
        lock = (attempt.folder / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.attempts.append(attempt)
        self._locks.append(lock)

    def end_if_wanted(self) -> None:
        """End the last one as it is told to."""
        if (why := self.attempts[-1].is_to_end()) is not None:
            self.attempts[-1].finish(why)


def test_a_job_is_run_to_its_exit_code_within_its_budget_of_failures(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    added(queue, failures=1)
    assert container(store, tmp_path, ends_with(9, 0)).run("one") == 0
    job = read(queue)
    assert (job.state, [one.code for one in job.tries]) == ("succeeded", [9, 0])
    assert store.read("jobs/one/logs/0002/000000000000000") is not None


def test_a_new_container_counts_what_the_one_before_began(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    added(queue, preemptions=1)
    queue.change("one", lambda job: job.started("42", "gone", "vertex", 2.0))
    assert container(store, tmp_path, ends_with(3)).run("one") == 3
    assert [one.why for one in read(queue).tries] == ["preempted", "exited"]


def test_beyond_the_budget_a_new_container_runs_nothing(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    added(queue, preemptions=0)
    queue.change("one", lambda job: job.started("42", "gone", "vertex", 2.0))
    assert container(store, tmp_path, ends_with()).run("one") == 1
    assert read(queue).state == "failed"


def test_one_that_was_stopped_before_never_runs(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    added(queue)
    queue.change("one", lambda job: job.stopping(2.0, "ada"))
    assert container(store, tmp_path, ends_with()).run("one") == 143


def test_a_container_that_is_taken_away_says_so_and_starts_nothing_more(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    added(queue)
    running = Running()

    def sleep(_: float) -> None:
        managed.take_away()
        running.end_if_wanted()

    managed = container(store, tmp_path, running.begin, sleep)
    assert managed.run("one") == 1
    job = read(queue)
    assert (job.state, job.tries[0].why, len(running.attempts)) == ("queued", "preempted", 1)


def test_a_container_that_was_replaced_ends_its_try_and_leaves_the_record_alone(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    added(queue)
    running = Running()

    def sleep(_: float) -> None:
        if len(read(queue).tries) == 1:
            replaced = Outcome("preempted", None, "its machine went")
            queue.change("one", lambda job: job.after_try(replaced, 3.0))
            queue.change("one", lambda job: job.started("43", "new", "vertex", 4.0))
        running.end_if_wanted()

    container(store, tmp_path, running.begin, sleep).run("one")
    job = read(queue)
    assert (job.state, job.tries[-1].machine, job.tries[-1].ended) == ("running", "new", None)
    assert len(running.attempts) == 1


def test_the_tpu_is_the_containers_own_and_what_vertex_ai_sets_is_kept(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    added(queue, framework="tensorflow", env={"TPU_WORKER_ID": "7"})
    seen: list[Mapping[str, str]] = []

    def start(attempt: Attempt) -> None:
        seen.append(attempt.content()["variables"])
        attempt.finish(Outcome("exited", 0))

    container(store, tmp_path, start).run("one")
    (variables,) = seen
    assert variables["TPU_NAME"] == "local"
    assert variables["PJRT_DEVICE"] == "TPU"
    assert (variables["TPU_ZONE"], variables["TPU_PROJECT"]) == ("us-central1-b", "tenant")
    assert variables["TPU_WORKER_ID"] == "7"
    assert not {"TPU_WORKER_HOSTNAMES", "TPU_GRPC_URL"} & variables.keys()


@pytest.mark.parametrize("config", [None, "", "no json"])
def test_a_container_without_tpu_config_has_a_tpu_all_the_same(config: str | None) -> None:
    tpu = tpu_of({} if config is None else {"TPU_CONFIG": config})
    assert (tpu.name, tpu.is_here) == ("local", True)


SLICE = {**WHERE, "tpu": "v5litepod-16", "hosts": "4"}


def follower(
    store: MemoryStore, folder: Path, start: Callable[[Attempt], None],
    sleep: Callable[[float], None] = lambda _: None, said: list[str] | None = None,
) -> Follower:  # fmt: skip
    lines = said if said is not None else []
    own = World({**ENVIRONMENT, "TPU_WORKER_ID": "3"}, start, sleep, time.time, lines.append)
    return Follower(store, folder, own, "3", lambda job: content_of(job, "b", ENVIRONMENT))


def test_another_host_of_a_slice_runs_each_try_of_worker_0_and_changes_no_record(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    job = Job("one", "id", Spec("true", vertex=SLICE, failures=1), 1.0)
    queue.add(job)
    seen: list[dict[str, object]] = []
    said: list[str] = []

    def worker_0(_: float) -> None:
        """Begin a try while none runs, and end it once the other host has its own."""
        job = read(queue)
        if job.state == "queued":
            queue.change("one", lambda there: there.started("42", "first", "vertex", 2.0))
        elif len(seen) == len(job.tries):
            ended = Outcome("exited", 2 - len(job.tries))
            queue.change("one", lambda there: there.after_try(ended, 3.0))

    def start(attempt: Attempt) -> None:
        seen.append(attempt.content())
        attempt.log.write_text(f"host {len(seen)}\n")
        attempt.finish(Outcome("exited", 0))

    assert follower(store, tmp_path, start, worker_0, said).run("one") == 0
    assert [one["number"] for one in seen] == [1, 2]
    assert {one["artifacts"] for one in seen} == {"host-3/"}
    assert said == ["host 1", "host 2"]
    assert [one.machine for one in read(queue).tries] == ["first", "first"]
    assert store.read("jobs/one/logs/0001/000000000000000") is None


def test_another_host_ends_its_program_when_worker_0_has_ended(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    queue.add(Job("one", "id", Spec("true", vertex=SLICE), 1.0))
    queue.change("one", lambda job: job.started("42", "first", "vertex", 2.0))
    running = Running()

    def sleep(_: float) -> None:
        if running.attempts:
            queue.change("one", lambda job: job.over("stopped", 3.0, "it was stopped"))
            running.end_if_wanted()

    assert follower(store, tmp_path, running.begin, sleep).run("one") == 143
    assert len(running.attempts) == 1


def test_a_slice_whose_hosts_have_no_numbers_fails_with_that_reason(
    store: MemoryStore, queue: Queue, tmp_path: Path
) -> None:
    queue.add(Job("one", "id", Spec("true", vertex=SLICE), 1.0))
    assert container(store, tmp_path, ends_with()).run("one") == 1
    assert "set no number for this host of the slice" in read(queue).reason
    queue.change("one", lambda job: Job("one", "id", job.spec, 1.0))
    numbered = {**ENVIRONMENT, "TPU_WORKER_ID": "0"}
    assert container(store, tmp_path, ends_with(0), environment=numbered).run("one") == 0
