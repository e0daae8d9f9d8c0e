"""Two machines, kills, stalls and reboots by chance, in virtual time: nothing starts twice."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.examples import examples
from tests.unit.agent.jobs.memory import Bucket, Clock, Killed, Machine, MemoryStore, Thing
from tpu_agent.jobs.attempt import Attempt
from tpu_agent.jobs.queue import ENDED, QUEUED, Job, Queue, Spec, parse
from tpu_core import paths as layout
from tpu_core.lease import Holder, Lease

MOST_SECONDS = 50_000.0


class Play:
    """Machines that share a bucket and a TPU, with misfortunes drawn by a seed."""

    def __init__(self, seed: int, disk: Path) -> None:
        self.random = Random(seed)
        self.bucket = Bucket(Clock())
        self.calm = False
        self._nested = 0
        self.machines = [
            Machine(name, self.bucket, disk / name, self._length, partial(self._misfortune, name))
            for name in ("one", "two")
        ]
        self.overlaps = 0

    def queue(self, count: int) -> Queue:
        made = Queue(MemoryStore(self.bucket), print)
        for index in range(count):
            # Only earlier jobs can be waited for.
            waits = index and self.random.random() < 0.3
            after = (f"j{self.random.randrange(index)}",) if waits else ()
            spec = Spec(
                "true",
                priority=self.random.randrange(3),
                after=after,
                failures=self.random.randrange(3),
                preemptions=1000,
            )
            made.add(Job(f"j{index}", str(index), spec, float(index)))
        return made

    def until_all_have_ended(self) -> None:
        clock = self.bucket.clock
        while any(states[-1] not in ENDED for states in self.bucket.states.values()):
            clock.seconds += self.random.choice([0.3, 1.0, 7.0])
            self.calm = clock.seconds > MOST_SECONDS / 2
            assert clock.seconds < MOST_SECONDS, "it never ends"
            machine = self.random.choice(self.machines)
            if not self.calm and self.random.random() < 0.003:
                machine.reboot()
            if not self.calm and self.random.random() < 0.003:
                # Nobody acts for a while, such as in maintenance of the hosts.
                clock.seconds += self.random.choice([20.0, 90.0])
            machine.step()
            self._look()

    def _look(self) -> None:
        self.overlaps += sum(len(machine.running()) for machine in self.machines) > 1

    def _length(self, _: str) -> tuple[float, int]:
        return self.random.choice([0.5, 5.0, 40.0]), self.random.choice([0, 0, 0, 1])

    def _misfortune(self, name: str) -> None:
        """Before a call: be killed, or stand still while time goes by and the other one acts."""
        if self.calm or self._nested:
            return
        chance = self.random.random()
        if chance < 0.004:
            raise Killed
        if chance < 0.008:
            self._nested = 1
            (other,) = (machine for machine in self.machines if machine.name != name)
            end = self.bucket.clock.seconds + self.random.choice([2.0, 30.0, 100.0])
            while self.bucket.clock.seconds < end:
                self.bucket.clock.seconds += 1.0
                other.step()
                self._look()
            self._nested = 0


def play(seed: int, disk: Path) -> Play:
    made = Play(seed, disk)
    made.queue(8)
    made.until_all_have_ended()
    return made


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> list[Play]:
    made = []
    for seed in range(examples(60)):
        disk = tmp_path_factory.mktemp("disk")
        made.append(play(seed, disk))
        shutil.rmtree(disk)
    return made


def test_no_try_starts_twice_on_any_machine(plays: list[Play]) -> None:
    for one in plays:
        started = Counter(try_ for machine in one.machines for try_ in machine.started)
        assert started.most_common(1)[0][1] == 1
    # The misfortunes are real: some jobs took several tries.
    assert any(number > 2 for one in plays for m in one.machines for _, number in m.started)


def test_every_job_ends_exactly_once_and_stays_so(plays: list[Play]) -> None:
    for one in plays:
        for states in one.bucket.states.values():
            assert [state in ENDED for state in states] == [False] * (len(states) - 1) + [True]


def test_tries_are_numbered_without_gaps_and_each_has_its_whole_log(plays: list[Play]) -> None:
    for one in plays:
        for name in one.bucket.states:
            job = parse(one.bucket.things[layout.record(name)].data, name)
            assert [try_.number for try_ in job.tries] == list(range(1, len(job.tries) + 1))
            for try_ in job.tries:
                if try_.why == "exited":
                    assert written(one.bucket, name, try_.number) == f"{try_.number}\n" * 3


def written(bucket: Bucket, name: str, number: int) -> str:
    prefix = layout.logs(name, number)
    paths = [path for path in sorted(bucket.things) if path.startswith(prefix)]
    return b"".join(bucket.things[path].data for path in paths).decode()


def test_a_job_starts_only_after_those_that_it_comes_after(plays: list[Play]) -> None:
    for one in plays:
        jobs = {n: parse(one.bucket.things[layout.record(n)].data, n) for n in one.bucket.states}
        for job in jobs.values():
            for before in job.spec.after:
                if job.tries:
                    assert jobs[before].state == "succeeded"
                    assert job.tries[0].started >= (jobs[before].ended or 0.0)


def test_never_do_two_jobs_use_the_tpu(plays: list[Play]) -> None:
    assert sum(one.overlaps for one in plays) == 0


def test_a_holder_that_renews_just_before_it_is_replaced_keeps_its_tpu() -> None:
    clock = Clock()
    bucket = Bucket(clock)
    # What the first machine does between the second one's look and its write.
    between: list[Callable[[], object]] = []

    def before() -> None:
        if len(between) == 1:
            between.pop()()
        elif between:
            between.pop(0)

    a = Lease(MemoryStore(bucket), "runners/t.json", Holder("a", "a"), clock.now, print, "runs")
    b = Lease(
        MemoryStore(bucket, before), "runners/t.json", Holder("b", "b"), clock.now, print, "runs"
    )
    assert a.hold()
    # It stood still, as in maintenance of its host; its next renewal is on its way.
    clock.seconds = 61.0
    between += [lambda: None, a.hold]
    assert not b.hold()
    assert a.is_sure
    # Without it, the second one has the TPU at once.
    clock.seconds = 130.0
    assert b.hold()
    assert not a.hold()


@pytest.mark.parametrize("seed", range(5))
def test_without_misfortune_jobs_run_by_priority_and_then_as_they_came(
    seed: int, tmp_path: Path
) -> None:
    one = Play(seed, tmp_path)
    one.calm = True
    queue = Queue(MemoryStore(one.bucket), print)
    jobs = [Job(f"j{n}", str(n), Spec("true", priority=n % 3), float(n)) for n in range(9)]
    one.random.shuffle(jobs)
    for job in jobs:
        queue.add(job)
    machine = one.machines[0]
    while any(states[-1] not in ENDED for states in one.bucket.states.values()):
        one.bucket.clock.seconds += 0.5
        machine.step()
    assert [name for name, _ in machine.started] == [
        *("j2", "j5", "j8"),
        *("j1", "j4", "j7"),
        *("j0", "j3", "j6"),
    ]
    assert QUEUED not in [states[-1] for states in one.bucket.states.values()]


def test_a_process_that_can_not_be_killed_keeps_its_tpu_and_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Play(0, tmp_path)
    one.calm = True
    queue = one.queue(2)
    machine, other = one.machines
    with monkeypatch.context() as patched:
        patched.setattr(Attempt, "kill", lambda self: False)
        for _ in range(200):
            one.bucket.clock.seconds += 1.0
            machine.step()
            other.step()
    assert len(machine.started + other.started) == 1
    assert len([line for line in machine.said if "can't be killed" in line]) == 1
    assert all(job["state"] in ("queued", "running") for job in queue.summaries().values())
    one.until_all_have_ended()


def test_records_that_are_damaged_or_anothers_stop_no_other_job(tmp_path: Path) -> None:
    one = Play(0, tmp_path)
    one.calm = True
    queue = Queue(MemoryStore(one.bucket), print)
    for state in ("queued", "running"):
        sound = Job("x", "x", Spec("true", priority=9), 0.0).summary()
        summary = {**sound, "state": state, "tpu": "t"}
        one.bucket.things[f"queue/torn-{state}.json"] = Thing(b"{", 1, 1, summary, 0.0)
        other = Job("another", "x", Spec("true"), 0.0, state=state)
        one.bucket.things[f"queue/false-{state}.json"] = Thing(other.to_json(), 1, 1, summary, 0.0)
    queue.add(Job("sound", "sound", Spec("true"), 1.0))
    while one.bucket.states["sound"][-1] not in ENDED:
        one.bucket.clock.seconds += 0.5
        assert one.bucket.clock.seconds < 200.0
        one.machines[0].step()
    assert one.machines[0].started == [("sound", 1)]
