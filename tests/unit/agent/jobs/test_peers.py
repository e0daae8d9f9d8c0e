"""A host of a spot slice ends when another one is gone for good, and for nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore, Program
from tpu_agent.jobs import hosts as slices
from tpu_agent.jobs.attempt import Attempt
from tpu_agent.jobs.hosts import Peers
from tpu_agent.jobs.queue import Outcome
from tpu_core.google import GoogleError

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux")


class Slice:
    """Three hosts, each with the agent's eye on the others, in virtual time."""

    def __init__(self, bucket: Bucket | None = None) -> None:
        self.bucket = bucket or Bucket(Clock())
        self.broken = False
        self.hosts = [self.boot(number) for number in range(3)]

    def boot(self, number: int) -> Peers:
        store = MemoryStore(self.bucket, self._answer)
        return Peers(store, "t", number, 3, self.bucket.clock.now)

    def minutes(self, minutes: int, *hosts: int) -> dict[int, str]:
        """Let these hosts live for so long; return which of them want to end, and why."""
        lost: dict[int, str] = {}
        for _ in range(minutes):
            self.bucket.clock.seconds += slices.BEAT
            for number in hosts:
                try:
                    if why := self.hosts[number].look():
                        lost.setdefault(number, why)
                except OSError:
                    continue
        return lost

    def _answer(self) -> None:
        if self.broken:
            raise GoogleError(503, "try again")


def test_a_whole_slice_goes_on() -> None:
    assert Slice().minutes(120, 0, 1, 2) == {}


def test_all_others_end_ten_minutes_after_one_was_preempted() -> None:
    hosts = Slice()
    hosts.minutes(20, 0, 1, 2)
    assert hosts.minutes(9, 0, 2) == {}
    why = "host 1 has been silent for 10 minutes"
    assert hosts.minutes(2, 0, 2) == {0: why, 2: why}


def test_a_host_that_restarts_or_has_no_network_for_a_while_ends_nothing() -> None:
    hosts = Slice()
    hosts.minutes(5, 0, 1, 2)
    assert hosts.minutes(9, 0, 2) == {}
    hosts.hosts[1] = hosts.boot(1)
    assert hosts.minutes(60, 0, 1, 2) == {}


def test_hosts_that_come_at_different_times_wait_for_each_other() -> None:
    hosts = Slice()
    assert hosts.minutes(29, 0) == {}
    hosts.hosts[1:] = hosts.boot(1), hosts.boot(2)
    assert hosts.minutes(60, 0, 1, 2) == {}


def test_a_host_that_never_comes_ends_the_others_in_half_an_hour() -> None:
    hosts = Slice()
    assert hosts.minutes(30, 0, 1) == {}
    assert hosts.minutes(1, 0, 1) == dict.fromkeys((0, 1), "host 2 has not come up for 30 minutes")


def test_heartbeats_of_the_slice_before_tell_nothing_of_this_one() -> None:
    old = Slice()
    old.minutes(5, 0, 1, 2)
    hosts = Slice(old.bucket)
    assert hosts.minutes(25, 0) == {}
    assert hosts.minutes(60, 0, 1, 2) == {}


def test_while_the_bucket_does_not_answer_no_host_is_silent() -> None:
    hosts = Slice()
    hosts.minutes(5, 0, 1, 2)
    hosts.broken = True
    assert hosts.minutes(60, 0, 1, 2) == {}
    hosts.broken = False
    # They do not all come back at once.
    assert hosts.minutes(5, 0) == {}
    assert hosts.minutes(60, 0, 1, 2) == {}


def test_hosts_that_all_lose_each_other_all_end() -> None:
    hosts = Slice()
    hosts.minutes(5, 0, 1, 2)
    begin, seen = hosts.bucket.clock.seconds, dict(hosts.bucket.things)
    ended = list[int]()
    for number in range(3):
        # What the others write does not reach this one.
        hosts.bucket.clock.seconds, hosts.bucket.things = begin, dict(seen)
        ended += hosts.minutes(12, number)
    assert ended == [0, 1, 2]


@pytest.fixture
def job(tmp_path: Path) -> Attempt:
    attempt = Attempt(tmp_path / "one-1")
    attempt.prepare({"job": "one", "number": 1})
    return attempt


def test_a_job_may_save_before_the_machine_goes_and_people_read_why(
    job: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, done, said = Program.begun(job, 0.0, 0), list[str](), list[str]()

    def sleep(seconds: float) -> None:
        told = job.is_to_end()
        assert told is not None
        assert (told.why, told.said) == ("preempted", "host 1 is silent")
        if not done:
            job.finish(Outcome("preempted"))
            os.close(program.lock)
            done.append("the job has saved")

    monkeypatch.setattr("tpu_agent.jobs.hosts.time.sleep", sleep)
    store = MemoryStore(bucket := Bucket(Clock()))

    def turn_off() -> None:
        done.append("off")

    slices.turn_host_off(store, tmp_path, "w-0", "host 1 is silent", said.append, turn_off)
    assert done == ["the job has saved", "off"]
    text = "w-0 turns itself off, because its spot slice is lost: host 1 is silent"
    assert said == [f"{text}. `tpustack recover` recreates it"]
    ((path, thing),) = bucket.things.items()
    assert path.startswith("limits/")
    assert text in thing.data.decode()


def test_a_machine_without_a_bucket_ends_all_the_same(tmp_path: Path) -> None:
    def refuse() -> None:
        raise GoogleError(403, "you may not")

    said, off = list[str](), list[bool]()
    store = MemoryStore(Bucket(Clock()), refuse)
    slices.turn_host_off(
        store, tmp_path, "w-0", "host 1 is silent", said.append, lambda: off.append(True)
    )
    assert off == [True]
    assert "w-0 ends all the same" in said[-1]
