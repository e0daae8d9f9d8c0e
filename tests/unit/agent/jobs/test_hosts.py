"""A job on all hosts of the stack's slice: worker 0's runner and the others, in virtual time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.jobs.memory import TPU, Bucket, Clock, MemoryStore, Program, Tpus
from tpu_agent import main
from tpu_agent.jobs.attempt import Attempt
from tpu_agent.jobs.environment import Tpu
from tpu_agent.jobs.hosts import Host, World as HostWorld
from tpu_agent.jobs.queue import Job, Outcome, Queue, Spec
from tpu_agent.jobs.runner import Runner, World
from tpu_core.google import Client, GoogleError
from tpu_core.lease import DURATION, Holder
from tpu_core.tpu import Place

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux")
SLICE = dataclasses.replace(TPU, hosts=("10.0.0.2", "10.0.0.3"), is_here=True)
FOREVER = 1e9


class Slice(Tpus):
    """A TPU of two hosts, on whose hosts jobs run."""

    tpu: Tpu = SLICE

    def ready(self) -> Tpu:
        return self.tpu


class Site:
    """Worker 0 with its runner, host 1, and what their programs do."""

    def __init__(self, disk: Path) -> None:
        self.bucket = Bucket(Clock())
        self.store = self.host_store = MemoryStore(self.bucket)
        self.queue, self.tpus = Queue(self.store, print), Slice()
        self.disk = disk
        self.began: list[tuple[str, dict[str, str]]] = []
        self.first: Program | None = None
        self.on_host: Callable[[Attempt], None] = lambda attempt: attempt.finish(
            Outcome("exited", 0)
        )
        clock = self.bucket.clock
        world = World(clock.now, clock.now, lambda _: None, self._start_on_worker_0)
        tpus: Any = self.tpus
        self.runner = Runner(self.store, Holder("42", "w-0"), "t", tpus, disk / "0", world)
        self.said: list[str] = []
        self.host = self.new_host()

    def new_host(self, sleep: Callable[[float], None] | None = None) -> Host:
        """Start host 1's agent, maybe again; while it sleeps, worker 0 goes on."""
        waits, now = sleep or self.worker_0, self.bucket.clock.now
        own = HostWorld({}, self._start_on_host, waits, now, self.said.append)
        return Host(self.host_store, "t", 1, lambda: SLICE, self.disk / "1", own)

    def submit(self, name: str, framework: str = "jax", **more: object) -> None:
        spec = Spec("true", framework=framework, **more)  # type: ignore[arg-type]
        self.queue.add(Job(name, f"id-{name}", spec, 1.0))

    def job(self, name: str) -> Job:
        job = self.queue.read(name)
        assert job is not None
        return job

    def worker_0(self, seconds: float = 2.0) -> None:
        """Let worker 0 go on."""
        self.bucket.clock.seconds += seconds
        if self.first and (why := self.first.attempt.is_to_end()):
            self.end_on_worker_0(why)
        self.runner.step()

    def end_on_worker_0(self, outcome: Outcome) -> None:
        assert self.first is not None
        self.first.attempt.finish(outcome)
        os.close(self.first.lock)
        self.first = None

    def _start_on_worker_0(self, attempt: Attempt) -> None:
        self.began.append(("0", attempt.content()["variables"]))
        self.first = Program.begun(attempt, FOREVER, 0)

    def _start_on_host(self, attempt: Attempt) -> None:
        assert attempt.claim()
        self.began.append(("1", attempt.content()["variables"]))
        attempt.log.write_text("on host 1\n")
        self.on_host(attempt)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def begins(attempt: Attempt) -> None:
    """The program goes on and on."""
    Program.begun(attempt, FOREVER, 0)


def numbers(site: Site) -> list[tuple[str, str, str]]:
    return [(host, own["JOB_NAME"], own["TPU_WORKER_ID"]) for host, own in site.began]


def test_each_host_runs_one_job_after_the_other_with_its_own_number(site: Site) -> None:
    for name, framework in (("one", "jax"), ("two", "pytorch")):
        site.submit(name, framework)
        site.worker_0(31.0)
        site.host.step()
        site.end_on_worker_0(Outcome("exited", 0))
        site.worker_0()
        assert site.job(name).state == "succeeded"
        site.host.step()
    assert numbers(site) == [
        ("0", "one", "0"), ("1", "one", "1"), ("0", "two", "0"), ("1", "two", "1"),
    ]  # fmt: skip
    (own,) = {variables["TPU_WORKER_HOSTNAMES"] for _, variables in site.began}
    assert own == "10.0.0.2,10.0.0.3"
    log = site.store.read("jobs/one/hosts/0001/1.log")
    assert log is not None
    assert log[0] == b"on host 1\n"
    assert "on host 1" in site.said


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (Outcome("exited", 3), "failed", "host 1 of the TPU: exit code 3"),
        (Outcome("setup", 1, "no pip"), "failed", "host 1 of the TPU: no pip"),
        (Outcome("preempted", None, "down"), "running", "host 1 of the TPU: down"),
    ],
)
def test_what_fails_on_one_host_ends_the_try_on_all_with_that_reason(
    site: Site, outcome: Outcome, state: str, reason: str
) -> None:
    site.on_host = lambda attempt: attempt.finish(outcome)
    site.submit("one")
    site.worker_0()
    site.host.step()
    site.worker_0(5.0)
    assert site.first is not None
    told = site.first.attempt.is_to_end()
    assert told is not None
    assert (told.why, told.code, told.said) == (outcome.why, outcome.code, reason)
    site.worker_0()
    site.worker_0(31.0)
    job = site.job("one")
    assert (job.state, job.tries[0].why) == (state, outcome.why)
    assert state == "running" or job.reason == reason
    # Nor does it run there once more until worker 0 has ended it.
    assert [host for host, _ in site.began].count("1") == 1


def test_a_host_ends_its_program_when_worker_0_has_ended(site: Site) -> None:
    def runs_on(attempt: Attempt) -> None:
        program = Program.begun(attempt, FOREVER, 0)
        done = attempt.end

        def end(why: str, said: str = "", code: int | None = None) -> None:
            done(why, said, code)
            attempt.finish(Outcome(why))
            os.close(program.lock)

        attempt.end = end  # type: ignore[method-assign]
        site.end_on_worker_0(Outcome("exited", 0))

    site.on_host = runs_on
    site.submit("one")
    site.worker_0()
    site.host.step()
    assert site.job("one").state == "succeeded"
    assert "one has ended on host 1 (stopped)" in site.said


def test_an_agent_that_was_killed_starts_no_try_twice_on_its_host(site: Site) -> None:
    site.submit("one")
    site.worker_0()
    site.host.step()
    for _ in range(3):
        site.new_host().step()
    assert numbers(site) == [("0", "one", "0"), ("1", "one", "1")]


def test_a_host_forgets_no_try_of_which_something_still_runs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [True, False]
    monkeypatch.setattr(Attempt, "kill", lambda _: ended.pop())
    site.submit("one")
    site.worker_0()
    site.host.step()
    assert ended == []


def test_a_host_that_was_restarted_says_that_its_try_has_gone(site: Site) -> None:
    def dies(attempt: Attempt) -> None:
        raise KeyboardInterrupt

    site.on_host = dies
    site.submit("one", preemptions=0)
    site.worker_0()
    with pytest.raises(KeyboardInterrupt):
        site.host.step()
    site.new_host().step()
    site.worker_0(5.0)
    site.worker_0()
    assert site.job("one").reason == "host 1 of the TPU: its VM was restarted"


def test_a_host_that_never_begins_ends_the_try_on_all_after_ten_minutes(site: Site) -> None:
    site.submit("one", preemptions=0)
    site.worker_0()
    site.worker_0(6.0)
    for _ in range(59):
        site.worker_0(10.0)
    assert site.job("one").state == "running"
    for _ in range(4):
        site.worker_0(10.0)
    job = site.job("one")
    assert (job.state, job.tries[0].why) == ("failed", "preempted")
    assert job.reason.startswith("host 1 of the TPU: it has not started for 10 minutes; see ")


@pytest.mark.slow
def test_a_host_that_falls_silent_ends_the_try_on_all_and_one_that_runs_for_long_does_not(
    site: Site,
) -> None:
    seconds = site.bucket.clock.seconds

    def runs_for_an_hour_and_dies(waited: float = 2.0) -> None:
        site.worker_0(waited)
        if site.bucket.clock.seconds > seconds + 3600:
            raise KeyboardInterrupt

    site.on_host = begins
    site.submit("one", preemptions=0)
    site.worker_0()
    with pytest.raises(KeyboardInterrupt):
        site.new_host(sleep=runs_for_an_hour_and_dies).step()
    assert site.job("one").state == "running"
    for _ in range(64):
        site.worker_0(10.0)
    assert site.job("one").reason.startswith("host 1 of the TPU: it has stopped reporting for 10 ")


def test_a_bucket_that_refuses_for_a_while_ends_no_try_on_a_host(site: Site) -> None:
    refusals = iter(range(3))

    class Refusing(MemoryStore):
        def write(self, path: str, *arguments: Any, **options: Any) -> int:
            still = (options.get("summary") or {}).get("why") == "runs"
            if still and next(refusals, None) is not None:
                raise GoogleError(503, "busy")
            return super().write(path, *arguments, **options)

    looks = iter(range(5))

    def runs_for_a_while(waited: float = 2.0) -> None:
        site.worker_0(waited)
        if next(looks, None) is None:
            raise KeyboardInterrupt

    site.host_store = Refusing(site.bucket)
    site.on_host = begins
    site.submit("one")
    site.worker_0()
    with pytest.raises(KeyboardInterrupt):
        site.new_host(sleep=runs_for_a_while).step()
    report = site.store.look("jobs/one/hosts/0001/1.json")
    assert report is not None
    assert report.summary["why"] == "runs"
    assert site.said.count("retrying: busy") == 3


def test_what_an_earlier_worker_0_has_left_running_is_not_begun(site: Site) -> None:
    site.submit("one")
    site.worker_0()
    site.bucket.clock.seconds += DURATION + 1.0
    site.new_host(sleep=lambda _: None).step()
    assert [host for host, _ in site.began] == ["0"]


@pytest.mark.parametrize(
    ("framework", "tpu"),
    [
        ("none", SLICE),
        ("tensorflow", SLICE),
        # On the VM, and with one host.
        ("jax", dataclasses.replace(SLICE, is_here=False)),
        ("jax", dataclasses.replace(SLICE, hosts=("10.0.0.2",))),
    ],
)
def test_other_jobs_run_on_worker_0_alone(site: Site, framework: str, tpu: Tpu) -> None:
    site.tpus.tpu = tpu
    site.submit("one", framework)
    site.worker_0()
    site.host.step()
    assert [host for host, _ in site.began] == ["0"]


@pytest.mark.parametrize(
    ("arguments", "number", "follows"),
    [(["here"], "3", True), (["here"], "0", False), ([], "3", False)],
)
def test_the_agent_follows_on_each_host_of_the_tpu_but_number_0(
    arguments: list[str],
    number: str,
    follows: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Metadata:
        client = Client(lambda *_: (404, {}, b""))

        def place(self) -> Place:
            return Place("p", "z", "b")

        def attribute(self, name: str) -> str:
            return {"agent-worker-number": number, "bucket-url": "gs://b"}.get(name, name)

        optional = entry = attribute

        def is_of_spot_slice(self) -> bool:
            return False

    class Made(Exception):
        """What was to run this host's jobs."""

    def made(*what: object) -> None:
        raise Made(*what)

    monkeypatch.setattr(main, "Machine", Metadata)
    monkeypatch.setattr("tpu_agent.jobs.hosts.Host", made)
    monkeypatch.setattr("tpu_agent.jobs.runner.Runner", made)
    with pytest.raises(Made) as found:
        main.run_jobs([str(tmp_path / "jobs.py"), "jobs", *arguments])
    made_of = found.value.args
    assert made_of[1:3] == ("tpu-name", 3) if follows else made_of[2] == "tpu-name"


def test_a_host_of_a_slice_that_has_no_number_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Metadata:
        def optional(self, name: str) -> str | None:
            return {"worker-network-endpoints": "t-001,t-002"}.get(name)

    monkeypatch.setattr(main, "Machine", Metadata)
    with pytest.raises(SystemExit, match="agent-worker-number is not set"):
        main.run_jobs([str(tmp_path / "jobs.py"), "jobs", "here"])
