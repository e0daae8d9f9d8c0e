"""A host of a spot slice ends when another one is gone for good, and for nothing else."""

from __future__ import annotations

import os
import subprocess
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore, Program
from tpu_agent.jobs import hosts as slices
from tpu_agent.jobs.attempt import Attempt
from tpu_agent.jobs.hosts import Peers
from tpu_agent.jobs.queue import Outcome
from tpu_agent.jobs.runner import Tpus
from tpu_agent.main import Machine, watch_peers
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


def test_a_bucket_that_fails_now_and_then_keeps_no_lost_slice_alive() -> None:
    hosts = Slice()
    hosts.minutes(5, 0, 1, 2)
    lost: dict[int, str] = {}
    for _ in range(3):
        lost |= hosts.minutes(8, 0, 2)
        hosts.broken = True
        assert hosts.minutes(1, 0, 2) == {}
        hosts.broken = False
    assert lost.keys() == {0, 2}


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


def test_what_the_runner_was_just_about_to_begin_ends_too(
    job: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, late = Program.begun(job, 0.0, 0), Attempt(tmp_path / "one-2")

    def sleep(seconds: float) -> None:
        if not late.is_prepared:
            late.prepare({"job": "one", "number": 2})
        elif not job.ended():
            job.finish(Outcome("preempted"))
            os.close(program.lock)

    monkeypatch.setattr("tpu_agent.jobs.hosts.time.sleep", sleep)
    store = MemoryStore(Bucket(Clock()))
    slices.turn_host_off(store, tmp_path, "w-0", "host 1 is silent", print, lambda: None)
    told = late.is_to_end()
    assert told is not None
    assert told.why == "preempted"


class Over(BaseException):
    """The last look of a test."""


class OneOfTwo(Machine):
    """Host 0 of a slice of two, whose power switch works at the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.switched = 0

    def metadata(self, path: str) -> tuple[str, str]:
        told = {
            "bucket-url": "gs://b",
            "tpu-project": "p",
            "tpu-zone": "us-east5-a",
            "tpu-name": "t",
            "worker-network-endpoints": "t-001,t-002",
        }
        name = path.rpartition("/")[2]
        if path.startswith("instance/attributes/") and name not in told:
            raise HTTPError(path, 404, "Not Found", Message(), None)
        return told.get(name, "w-0"), ""

    def turn_off(self) -> None:  # type: ignore[override]
        self.switched += 1
        if self.switched == 1:
            raise subprocess.CalledProcessError(1, "systemctl")


def test_a_lone_host_begins_nothing_more_and_turns_itself_off_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, bucket = OneOfTwo(), Bucket(Clock())
    store = MemoryStore(bucket)
    monkeypatch.setattr("tpu_agent.main.Bucket", lambda *_: store)
    monkeypatch.setattr("tpu_agent.main.time.monotonic", bucket.clock.now)
    tpus = Tpus(machine.place(), "t", lambda *_: (500, {}), lambda: None, is_here=True)
    looks = list[int]()

    def sleep(seconds: float) -> None:
        bucket.clock.seconds += seconds
        looks.append(machine.switched)
        if machine.switched == 2:
            raise Over

    with pytest.raises(Over):
        watch_peers(machine, tmp_path, 0, tpus, sleep)
    # The first look is at zero minutes; the 31st at thirty.
    assert looks == [0] * 30 + [1, 2]
    assert tpus.ready() is None
    assert tpus.why_not == "the slice t is lost: host 1 has not come up for 31 minutes"


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
