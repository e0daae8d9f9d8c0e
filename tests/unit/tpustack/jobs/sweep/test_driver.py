"""A sweep: each trial is one job, poor ones are pruned, and a resumed sweep repeats nothing."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.unit.agent.jobs.memory import Bucket, Clock, Killed, MemoryStore
from tpu_agent.jobs.queue import STOPPED, Job, Outcome, Queue, Spec
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import sweep as tuner
from tpustack.jobs.sweep import COMPLETE, FAILED, PRUNED, Driver, Record, Sweep, Trial, Value

from .machine import Machine, loss

optuna = pytest.importorskip("optuna")

SWEEP = Sweep(
    name="s",
    params=("rate=1e-4..1e-1:log",),
    spec=Spec("python main.py"),
    metric="loss",
    goal="minimize",
    wanted=12,
    parallel=2,
    seed=0,
    buckets=("b",),
)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket(Clock())


@pytest.fixture
def queue(bucket: Bucket) -> Queue:
    return Queue(MemoryStore(bucket), print)


def begun(queue: Queue, sweep: Sweep = SWEEP) -> Driver:
    record = Record(queue.store, sweep.name)
    record.write(sweep)
    return Driver(sweep, record, {"b": queue}, lambda _: None)


def resumed(queue: Queue) -> Driver:
    record = Record(queue.store, SWEEP.name)
    return Driver(record.read(), record, {"b": queue}, lambda _: None)


def test_a_pruned_trial_is_never_the_best() -> None:
    early = Trial(0, "b", "s-000", {"rate": 0.1}, PRUNED, value=0.1)
    whole = Trial(1, "b", "s-001", {"rate": 0.2}, COMPLETE, value=0.2)
    assert replace(SWEEP, trials=(early, whole)).best == whole


def first_rates(seed: int, params: tuple[str, ...], count: int = 4) -> list[dict[str, Value]]:
    sweep = replace(SWEEP, params=params, seed=seed)
    for number in range(count):
        values = tuner.next_params(sweep)
        sweep = replace(sweep, trials=(*sweep.trials, Trial(number, "b", str(number), values)))
    return [one.params for one in sweep.trials]


@pytest.mark.parametrize("seed", range(8))
def test_the_first_trials_of_one_parameter_cover_its_range(seed: int) -> None:
    found = [float(one["lr"]) for one in first_rates(seed, ("lr=0.01..0.5:log",))]
    assert max(found) / min(found) > 50**0.5, "at least half of the range"


@pytest.mark.parametrize("seed", range(8))
def test_the_first_trials_cover_the_range_of_each_parameter(seed: int) -> None:
    params = ("rate=1e-4..1:log", "batch=1..64", "optimizer=adam,lamb")
    found = first_rates(seed, params)
    rates = sorted(math.log10(float(one["rate"])) for one in found)
    assert rates[-1] - rates[0] > 2, "at least half of the four orders of magnitude"
    batches = sorted(int(one["batch"]) for one in found)
    assert batches[-1] - batches[0] > 32
    assert batches[0] >= 1
    assert batches[-1] <= 64
    assert {one["optimizer"] for one in found} == {"adam", "lamb"}


def test_seeds_differ_and_parameters_are_uncorrelated() -> None:
    starts = [float(first_rates(seed, ("rate=0.0..1.0",), 1)[0]["rate"]) for seed in range(20)]
    assert max(starts) - min(starts) > 0.8
    pairs = first_rates(0, ("a=0.0..1.0", "b=0.0..1.0"), 10)
    correlation = statistics.correlation(
        [float(one["a"]) for one in pairs], [float(one["b"]) for one in pairs]
    )
    assert abs(correlation) < 0.5


def ended(queue: Queue, name: str, outcome: Outcome) -> None:
    queue.change(name, lambda job: job.started("1", "m", "t", 0.0).after_try(outcome, 0.0))


def test_each_trial_is_a_job_and_the_best_is_known(queue: Queue) -> None:
    machine = Machine(queue)
    driver = begun(queue)
    driver.run(machine.turn)
    assert len(driver.sweep.trials) == len(machine.ran) == 12
    assert Record(queue.store, "s").read() == driver.sweep
    best = driver.sweep.best
    assert best is not None
    assert best.value == min(one.value for one in driver.sweep.trials if one.value is not None)
    rate = best.params["rate"]
    assert f"python main.py --rate={rate}" in machine.ran
    assert loss(f"--rate={rate}") < 0.5


def test_poor_trials_are_pruned(queue: Queue) -> None:
    driver = begun(queue, replace(SWEEP, wanted=20))
    driver.run(Machine(queue).turn)
    states = Counter(one.state for one in driver.sweep.trials)
    assert states[PRUNED] > 0
    assert states[COMPLETE] + states[PRUNED] == 20
    assert all(one.stop or one.state == STOPPED for one in jobs(queue, driver.sweep, PRUNED))
    assert not any(one.stop for one in jobs(queue, driver.sweep, COMPLETE))


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_sweep_resumes_without_running_a_trial_twice(
    bucket: Bucket, queue: Queue, seed: int
) -> None:
    chance, machine = random.Random(seed), Machine(queue)

    def kill() -> None:
        if chance.random() < 0.05:
            raise Killed

    begun(queue)
    kills = 0
    while True:
        driver = resumed(Queue(MemoryStore(bucket), print))
        driver._queues = {"b": Queue(MemoryStore(bucket, kill), print)}
        driver._record._store = MemoryStore(bucket, kill)
        try:
            driver.run(machine.turn)
            break
        except Killed:
            kills += 1
    assert kills > 3
    assert sorted(queue.summaries()) == [f"s-{number:03}" for number in range(12)]
    assert len(machine.ran) == len(set(machine.ran)) == 12
    assert all(not one.stop for one in jobs(queue, driver.sweep, COMPLETE))
    assert all(one.stop or one.state == STOPPED for one in jobs(queue, driver.sweep, PRUNED))


def jobs(queue: Queue, sweep: Sweep, state: str) -> Iterator[Job]:
    for one in sweep.trials:
        if one.state == state:
            job = queue.read(one.job)
            assert job is not None
            yield job


def test_the_second_command_that_continues_a_sweep_ends(queue: Queue) -> None:
    first = begun(queue)
    second = resumed(queue)
    first.step()
    with pytest.raises(TpustackError, match="another command continues the sweep s"):
        second.step()
    assert len(queue.summaries()) == 2


def test_a_sweep_of_a_name_in_use_is_refused(queue: Queue) -> None:
    begun(queue)
    with pytest.raises(UsageError, match="there is a sweep s already"):
        begun(queue)


def test_a_trial_fails_if_its_job_fails_or_reports_no_metric(queue: Queue) -> None:
    driver = begun(queue, replace(SWEEP, wanted=2))
    driver.step()
    for name, code in (("s-000", 7), ("s-001", 0)):
        ended(queue, name, Outcome("exited", code))
    driver.step()
    assert [(one.state, one.why) for one in driver.sweep.trials] == [
        (FAILED, "its job is failed (exit code 7)"),
        (FAILED, "it wrote no loss"),
    ]
    assert driver.sweep.is_over
    assert driver.sweep.best is None


def test_trials_are_spread_over_all_queues(bucket: Bucket, queue: Queue) -> None:
    other = Queue(MemoryStore(Bucket(Clock())), print)
    sweep = replace(SWEEP, buckets=("b", "c"), wanted=8)
    record = Record(queue.store, "s")
    record.write(sweep)
    driver = Driver(sweep, record, {"b": queue, "c": other}, lambda _: None)
    machines = [Machine(queue), Machine(other)]

    def turn(_: float) -> None:
        for machine in machines:
            machine.turn()

    driver.run(turn)
    assert [len(machine.ran) for machine in machines] == [4, 4]
