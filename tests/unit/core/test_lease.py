"""Two trainers never write one model directory, whatever their clocks and their networks do."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tpu_core import bucket as core
from tpu_core.bucket import Conflict, Item
from tpu_core.google import GoogleError
from tpu_core.lease import BucketLease, LeaseError, hold
from tpu_core.process import Process, parse

DIRECTORY = "gs://bucket/jobs/one"


class Time:
    """Time that passes when somebody waits; `meanwhile` runs whatever else happens by then."""

    def __init__(self, begin: float = 1000.0) -> None:
        self.seconds = begin
        self.meanwhile: Callable[[], object] = lambda: None

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.meanwhile()


class Bucket(core.Bucket):
    """One object with the preconditions of Cloud Storage, by the clock of the bucket."""

    def __init__(self, time: Time) -> None:
        super().__init__("bucket", lambda *_: pytest.fail("it reaches the network"))
        self.time = time
        self.object: Item | None = None
        self.reachable = True
        self.slow = 0.0
        self.loses_answers = 0
        self.generations = 0

    def look(self, path: str) -> Item | None:
        self._reach()
        if self.object is None:
            return None
        return dataclasses.replace(self.object, age=self.time.now() - self.object.updated)

    def write(
        self,
        path: str,
        data: bytes,
        *,
        generation: int | None = None,
        metageneration: int | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> int:
        self._reach()
        self._expect(generation or 0, metageneration)
        self.put(dict(summary or {}))
        if self.loses_answers:
            self.loses_answers -= 1
            raise GoogleError(0, "timed out")
        return self.generations

    def put(self, summary: dict[str, Any]) -> None:
        self.generations += 1
        plain = json.loads(json.dumps(summary))
        self.object = Item("o", self.generations, 1, 0, plain, self.time.now(), 0.0)

    def touch(self, path: str, generation: int, summary: Mapping[str, Any]) -> None:
        self._reach()
        if self.object is None:
            raise GoogleError(404, "it is gone")
        self._expect(generation)
        count, now = self.object.metageneration + 1, self.time.now()
        self.object = dataclasses.replace(self.object, metageneration=count, updated=now)
        if slow := self.slow:
            self.slow = 0.0
            self.time.sleep(slow)

    def delete(self, path: str, generation: int) -> None:
        self._reach()
        self._expect(generation)
        self.object = None

    def _reach(self) -> None:
        if not self.reachable:
            raise GoogleError(0, "no answer")

    def _expect(self, generation: int, metageneration: int | None = None) -> None:
        now = self.object
        there = (now.generation, now.metageneration) if now else (0, None)
        if generation != there[0] or metageneration not in (None, there[1]):
            raise Conflict("changed")


def holder(name: str) -> Process:
    """A process on another machine, of which nothing is known."""
    return Process(name, f"vm-{name}", 12, "", "", "2026-11-22T12:00:00Z")


def summary(process: Process) -> dict[str, Any]:
    return {"id": process.run, "name": str(process), "about": dataclasses.asdict(process)}


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def bucket(time: Time) -> Bucket:
    return Bucket(time)


def lease(bucket: Bucket, name: str, clock: Time | None = None) -> BucketLease:
    time = clock or bucket.time
    return BucketLease(DIRECTORY, bucket, holder(name), time.now, time.sleep)


def test_the_second_trainer_learns_who_holds_the_directory(bucket: Bucket, time: Time) -> None:
    first = lease(bucket, "a")
    first.acquire()
    time.meanwhile = first.renew
    with pytest.raises(LeaseError, match=r"process 12 on vm-a .* trains there"):
        lease(bucket, "b").acquire()
    first.confirm()


def test_the_lease_of_a_dead_holder_is_taken_after_a_minute(bucket: Bucket, time: Time) -> None:
    lease(bucket, "a").acquire()
    begun = time.now()
    lease(bucket, "b").acquire()
    assert 60 < time.now() - begun < 65


def test_a_released_lease_is_free_at_once(bucket: Bucket, time: Time) -> None:
    first = lease(bucket, "a")
    first.acquire()
    first.release()
    begun = time.now()
    lease(bucket, "b").acquire()
    assert time.now() == begun


def test_a_holder_that_ended_on_this_machine_is_not_waited_for(bucket: Bucket, time: Time) -> None:
    code = (
        "from tpu_core import process, records;"
        "print(records.dump(process.Process.this_process()).decode())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    dead = parse(done.stdout)
    assert dead
    bucket.put(summary(dead))
    begun = time.now()
    lease(bucket, "b").acquire()
    assert time.now() == begun


def test_a_holder_that_runs_on_this_machine_is_refused_without_waiting(
    bucket: Bucket, time: Time
) -> None:
    bucket.put(summary(dataclasses.replace(Process.this_process(), run="another")))
    begun = time.now()
    with pytest.raises(LeaseError, match=f"process {os.getpid()} on"):
        lease(bucket, "b").acquire()
    assert time.now() == begun


def test_the_loser_stops_before_its_next_write_and_says_who_holds_it(
    bucket: Bucket, time: Time
) -> None:
    loser = lease(bucket, "a")
    loser.acquire()
    time.sleep(61)  # As a VM that was suspended.
    lease(bucket, "b").acquire()
    with pytest.raises(LeaseError, match=r"process 12 on vm-b .* has taken it over"):
        loser.confirm()
    with pytest.raises(LeaseError):
        loser.check()
    loser.release()
    assert bucket.object
    assert "vm-b" in bucket.object.summary["name"]


def test_a_writer_is_refused_at_once_after_the_release(
    bucket: Bucket, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, renewals = lease(bucket, "a"), list[float]()
    mine.acquire()
    time.sleep(10)
    mine.release()
    renew = mine.renew

    def count(within: float) -> None:
        renewals.append(time.now())
        assert len(renewals) < 5, "it spins"
        renew(within)

    monkeypatch.setattr(mine, "renew", count)
    for ask in (mine.confirm, mine.check):
        with pytest.raises(LeaseError, match="has released its lease"):
            ask()


def test_a_writer_is_refused_after_the_release_of_a_local_folder(
    tmp_path: Path,
) -> None:
    with hold(str(tmp_path)) as mine:
        mine.confirm()
        mine.check()
    for ask in (mine.confirm, mine.check):
        with pytest.raises(LeaseError, match="has released its lease"):
            ask()


def test_a_bucket_that_is_out_of_reach_holds_writes_back_and_loses_nothing(
    bucket: Bucket, time: Time
) -> None:
    mine = lease(bucket, "a")
    mine.acquire()
    bucket.reachable = False
    time.sleep(39)
    mine.confirm()  # Nobody may take it for another 20 seconds.
    time.sleep(2)

    def recover() -> None:
        bucket.reachable = time.now() >= 1100

    time.meanwhile = recover
    mine.confirm()
    assert time.now() >= 1100


def test_a_bucket_that_does_not_come_back_ends_the_job(bucket: Bucket, time: Time) -> None:
    mine = lease(bucket, "a")
    mine.acquire()
    bucket.reachable = False
    time.sleep(60)
    with pytest.raises(GoogleError, match="no answer"):
        mine.confirm()


def test_a_bucket_that_refuses_ends_the_job_at_once(bucket: Bucket, time: Time) -> None:
    def refuse(path: str) -> Item | None:
        raise GoogleError(403, "HTTP response code 403")

    bucket.look = refuse  # type: ignore[method-assign]
    with pytest.raises(GoogleError, match="403"):
        lease(bucket, "a").acquire()
    assert time.now() == 1000.0


@pytest.mark.parametrize("garbage", [{}, {"id": 1}, {"about": 5}, {"about": {"run": 1}}])
def test_a_damaged_lease_is_taken_over_once_it_is_not_renewed(
    bucket: Bucket, garbage: dict[str, Any]
) -> None:
    bucket.put(garbage)
    lease(bucket, "b").acquire()
    assert bucket.object
    assert bucket.object.summary["id"] == "b"


def test_an_answer_that_was_lost_on_the_way_does_not_lose_the_lease(bucket: Bucket) -> None:
    bucket.loses_answers = 1
    mine = lease(bucket, "a")
    mine.acquire()
    mine.confirm()


def test_a_confirmation_that_arrives_too_late_confirms_nothing(bucket: Bucket, time: Time) -> None:
    """As on a VM that was suspended after it asked: the lease is another's by now."""
    mine = lease(bucket, "a")
    mine.acquire()
    time.sleep(3)

    def take_over() -> None:
        time.meanwhile = lambda: None
        lease(bucket, "b").acquire()

    time.meanwhile, bucket.slow = take_over, 61.0
    with pytest.raises(LeaseError, match=r"process 12 on vm-b .* has taken it over"):
        mine.confirm()


def test_a_lost_lease_is_not_taken_again_although_its_taker_is_unknown(
    bucket: Bucket, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = lease(bucket, "a")
    mine.acquire()
    time.sleep(61)
    bucket.put(summary(holder("b")))

    def denied(path: str) -> Item | None:
        raise RuntimeError("no credentials")

    with monkeypatch.context() as patch:
        patch.setattr(bucket, "look", denied)
        with pytest.raises(LeaseError, match="another process has taken it over"):
            mine.confirm()
    bucket.object = None
    with pytest.raises(LeaseError, match="stops writing there"):
        mine.confirm()


def test_a_lease_that_another_was_faster_to_take_is_asked_for_again(
    bucket: Bucket, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was free, such as its own whose answer was lost, says nothing about a living holder."""
    bucket.put(summary(dataclasses.replace(Process.this_process(), run="a")))
    mine = BucketLease(
        DIRECTORY,
        bucket,
        dataclasses.replace(Process.this_process(), run="a"),
        time.now,
        time.sleep,
    )
    write, tries = bucket.write, list[str]()

    def write_late(path: str, data: bytes, **more: Any) -> int:
        tries.append(path)
        if len(tries) == 1:
            raise Conflict("changed")
        return write(path, data, **more)

    monkeypatch.setattr(bucket, "write", write_late)
    mine.acquire()
    assert len(tries) == 2


def test_a_deleted_lease_stops_its_holder(bucket: Bucket, time: Time) -> None:
    mine = lease(bucket, "a")
    mine.acquire()
    bucket.object = None
    time.sleep(3)
    with pytest.raises(LeaseError, match="its lease was deleted"):
        mine.confirm()


@pytest.mark.parametrize("seed", range(20))
def test_in_random_schedules_two_trainers_never_write_at_once(seed: int) -> None:
    """Ten trainers whose clocks are hours apart pause, lose their network and die by chance."""
    chance, time = random.Random(seed), Time()
    bucket = Bucket(time)
    skews = [chance.uniform(-1e5, 1e5) for _ in range(10)]
    holding: dict[int, BucketLease] = {}
    taken = 0

    class Skewed(Time):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def now(self) -> float:
            return time.now() + skews[self.number]

        def sleep(self, seconds: float) -> None:
            raise TimeoutError  # One look at a time: others have their turn then.

    def act(number: int) -> None:
        nonlocal taken
        bucket.reachable = chance.random() < 0.7
        mine = holding.get(number)
        try:
            if mine is None:
                mine = trainers[number]
                mine.acquire()
                holding[number], taken = mine, taken + 1
            else:
                calls: list[Callable[[], object]] = [mine.renew, mine.confirm]
                chance.choice(calls)()
        except TimeoutError:
            return
        except GoogleError:
            return
        except LeaseError:
            holding.pop(number, None)
            trainers[number] = lease(bucket, f"{number}-{time.now()}", Skewed(number))
            return
        may_write = [n for n, held in holding.items() if held._lease.is_sure]
        assert len(may_write) <= 1

    trainers = [lease(bucket, str(number), Skewed(number)) for number in range(10)]
    for _ in range(3000):
        time.seconds += chance.choice([0.1, 1.0, 5.0, 30.0])
        act(chance.randrange(10))
    assert taken > 3


def test_a_local_directory_has_one_trainer(tmp_path: Path) -> None:
    with (
        hold(str(tmp_path / "results")),
        pytest.raises(LeaseError, match=rf"process {os.getpid()} on .* trains there"),
        hold(str(tmp_path / "results")),
    ):
        pass
    with hold(str(tmp_path / "results")):
        assert json.loads((tmp_path / "results/lease.json").read_text())["process"] == os.getpid()


def test_a_killed_trainer_leaves_a_local_directory_free(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys;"
        "from tpu_core.lease import hold\n"
        "with hold(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -9
    assert (tmp_path / "lease.json").exists()
    with hold(str(tmp_path)):
        pass


def test_a_file_system_without_locks_is_told_and_the_holder_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    for _ in range(2):
        with hold(str(tmp_path)):
            assert json.loads((tmp_path / "lease.json").read_text())["process"] == os.getpid()
    assert caplog.text.count("has no locks") == 2


def test_evaluating_next_to_a_training_is_allowed(tmp_path: Path) -> None:
    with hold(str(tmp_path)), hold(str(tmp_path), trains=False) as lease:
        lease.confirm()
        lease.check()
