"""Every write works, its answer is lost, and the transport repeats it: nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.testing import Client
from tests.unit.agent.jobs.test_managed import ENVIRONMENT, WHERE, Running
from tpu_agent.jobs.attempt import Attempt
from tpu_agent.jobs.hosts import World
from tpu_agent.jobs.queue import RUNNING, Job, Outcome, Queue, Spec
from tpu_agent.jobs.vertex import Managed
from tpu_core.bucket import Bucket, Conflict
from tpu_core.google import Answer, Body, Send
from tpustack.cloud.google import Google
from tpustack.jobs.job import submit
from tpustack.jobs.sweep import Record

Other = Callable[[], None]


@pytest.fixture(scope="module")
def send(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Send]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud") / "home")
    running.start()
    yield Google(Client(running).session).exchange
    running.stop()


def repeated(send: Send, other: Other = lambda: None) -> Send:
    """What a transport does whose every answer to a write is lost; others act in between."""

    def lossy(method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        answer = send(method, url, headers, body)
        if method == "GET":
            return answer
        other()
        return send(method, url, headers, body)

    return lossy


@pytest.fixture
def bucket(send: Send, request: pytest.FixtureRequest) -> str:
    name = f"b{abs(hash(request.node.name))}"
    url = f"https://storage.googleapis.com/storage/v1/b?project={projects.DEFAULT_PROJECT}"
    body = f'{{"name": "{name}", "location": "US-CENTRAL1"}}'.encode()
    assert send("POST", url, {"Content-Type": "application/json"}, body)[0] == 200
    return name


@pytest.fixture
def store(send: Send, bucket: str) -> Bucket:
    return Bucket(bucket, repeated(send))


def job_in(queue: Queue) -> Job:
    job = queue.read("one")
    assert job is not None
    return job


def test_a_write_that_is_repeated_is_not_anothers(store: Bucket) -> None:
    first = store.write("x", b"1", generation=0)
    second = store.write("x", b"2", generation=first, summary={"a": 1})
    with pytest.raises(Conflict):
        store.write("x", b"2", generation=first)
    assert store.read("x") == (b"2", second)
    store.delete("x", second)
    assert store.read("x") is None


def test_a_job_is_submitted_once(store: Bucket) -> None:
    queue = Queue(store, print)
    assert submit(queue, Spec("true"), "one", None).name == "one"
    changed = queue.change("one", lambda job: replace(job, stop=True))
    assert changed is not None
    assert changed.stop


def test_a_sweeps_record_is_its_own(store: Bucket) -> None:
    from tests.unit.tpustack.jobs.sweep.test_driver import SWEEP

    record = Record(store, "s")
    record.write(SWEEP)
    record.write(replace(SWEEP, wanted=SWEEP.wanted + 1))
    assert Record(store, "s").read().wanted == SWEEP.wanted + 1


def managed(store: Bucket, folder: Path, start: Callable[[Attempt], None], step: Other) -> Managed:
    environment: Mapping[str, str] = ENVIRONMENT
    return Managed(
        store, folder, World(environment, start, lambda _: step(), time.time, lambda _: None)
    )


def test_a_container_runs_its_job_once(store: Bucket, tmp_path: Path) -> None:
    Queue(store, print).add(Job("one", "id", Spec("true", vertex=WHERE), 1.0))
    started: list[Attempt] = []

    def start(attempt: Attempt) -> None:
        started.append(attempt)
        attempt.finish(Outcome("exited", 0))

    assert managed(store, tmp_path, start, lambda: None).run("one") == 0
    job = job_in(Queue(store, print))
    assert (job.state, len(job.tries), len(started)) == ("succeeded", 1, 1)


def test_a_container_knows_its_own_try_although_someone_stopped_the_job_in_between(
    send: Send, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_agent.jobs.vertex._LOOK", 0.0)
    person = Queue(Bucket(bucket, send), print)
    person.add(Job("one", "id", Spec("true", vertex=WHERE), 1.0))

    def stop_it() -> None:
        person.change("one", lambda job: replace(job, stop=job.state == RUNNING))

    running = Running()
    own = Bucket(bucket, repeated(send, stop_it))
    assert managed(own, tmp_path, running.begin, running.end_if_wanted).run("one") == 143
    job = job_in(person)
    assert (job.state, [one.why for one in job.tries]) == ("stopped", ["stopped"])
