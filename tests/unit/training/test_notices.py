"""A notice is heard in time, and checkpoints are as frequent as they pay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tpu_training.checkpoints.reader import JobHistory
from tpu_training.job.supervision import Notices, hear_of_tpu
from tpu_training.loop.callbacks import ShutdownRequest
from tpu_training.loop.train import CheckpointSchedule, Pace

pytestmark = pytest.mark.training


def heard(*looks: Mapping[str, Any]) -> list[tuple[bool, bool]]:
    """After each look: whether the job has to end, and whether it has to save."""
    shutdown = ShutdownRequest()
    notices, answers = Notices(shutdown), []
    for instance in looks:
        notices.look(instance)
        answers.append((shutdown.requested, shutdown.take_notice()))
    return answers


QUIET = {"preempted": "FALSE", "maintenanceEvent": "NONE"}


def test_a_preemption_ends_the_job_with_a_checkpoint() -> None:
    assert heard(QUIET, QUIET | {"preempted": "TRUE"}) == [(False, False), (True, True)]


@pytest.mark.parametrize(
    "notice",
    [
        {"maintenanceEvent": "MIGRATE_ON_HOST_MAINTENANCE"},
        {"maintenanceEvent": "TERMINATE_ON_HOST_MAINTENANCE"},
        {"upcomingMaintenance": {"maintenance_status": "PENDING", "can_reschedule": "FALSE"}},
    ],
)
def test_maintenance_saves_once_and_the_job_continues(notice: dict[str, Any]) -> None:
    looks = [QUIET, QUIET | notice, QUIET | notice, QUIET, QUIET | notice]
    saves = [False, True, False, False, True]
    assert heard(*looks) == [(False, save) for save in saves]


class Looks:
    """An end that comes after the looks; what the bucket lists at each, None when unknown."""

    def __init__(self, *found: int | None) -> None:
        self.found, self.waits = list(found), list[float]()

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return not self.found

    def look(self) -> int | None:
        return self.found.pop(0)


@pytest.mark.parametrize(
    ("found", "saves"),
    [
        ((0, 0, 0), False),
        ((1,), False),
        ((None, 1, None, 1), False),
        ((1, 2), True),
        ((0, None, 2), True),
    ],
)
def test_a_notice_of_the_tpus_machine_saves_and_does_not_end_the_job(
    found: tuple[int | None, ...], saves: bool
) -> None:
    looks: Any = Looks(*found)
    shutdown = ShutdownRequest()
    hear_of_tpu(shutdown, looks, looks.look)
    assert shutdown.take_notice() == saves
    assert not shutdown.requested


def test_forged_notices_make_it_save_once_a_minute_at_most() -> None:
    looks: Any = Looks(*range(100))
    hear_of_tpu(ShutdownRequest(), looks, looks.look)
    # It begins with what is there, then each change is one save and a minute of silence.
    assert sum(looks.waits) >= 99 * 60


def test_loops_of_a_recipe_with_slow_steps_take_a_second() -> None:
    """ResNet-50 on a v3-8: 0.141 s a step, and a loop of 312 would be deaf for 44 s."""
    pace, seconds = Pace(), 0.141
    loops = []
    for compiling in (40.0, 0.0, 0.0, 0.0):
        loops.append(min(312, pace.most))
        pace.add(loops[-1], loops[-1] * seconds + compiling)
    assert loops == [10, 1, 7, 7]


def test_a_loop_has_at_least_one_step_and_fast_ones_have_no_bound() -> None:
    pace = Pace()
    pace.add(10, 2.0)
    assert pace.most == 10
    pace.add(10, 200.0)
    assert pace.most == 1
    pace.add(1, 0.0)
    assert pace.most >= 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def intervals(history: JobHistory, cost: float, saves: int = 3) -> list[float]:
    """The seconds between the first checkpoints of a job with steps of a second."""
    clock = Clock()
    schedule = CheckpointSchedule(0, history, clock)
    found, last = [], 0.0
    for step in range(1, 100_000):
        clock.now += 1.0
        if schedule.is_due(step):
            found.append(clock.now - last)
            schedule.begin()
            schedule.saved(cost)
            last = clock.now
        if len(found) == saves:
            break
    return found


def test_checkpoints_follow_youngs_formula_from_measured_cost() -> None:
    first, second, third = intervals(JobHistory(), cost=0.5)
    assert first == 60
    assert second == pytest.approx((2 * 0.5 * 16 * 3600) ** 0.5, abs=1.0)
    assert third == pytest.approx(second, rel=0.01)


def test_the_checkpoint_interval_is_logged_with_its_unit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    intervals(JobHistory(), cost=0.5)
    assert "(--checkpoint_interval=0)" in caplog.text


def test_a_job_that_fails_often_saves_more_often() -> None:
    often = intervals(JobHistory(starts=10, seconds=3600), cost=0.5)[1]
    assert often == pytest.approx((2 * 0.5 * 17 * 3600 / 10) ** 0.5, abs=1.0)
    assert often < intervals(JobHistory(), cost=0.5)[1] / 3


def test_saves_that_cost_nothing_are_at_least_ten_seconds_apart() -> None:
    assert intervals(JobHistory(), cost=0.0)[1:] == [10.0, 10.0]


def test_an_interval_of_the_users_is_kept_to_the_step() -> None:
    schedule = CheckpointSchedule(7, JobHistory(), Clock())
    assert [step for step in range(1, 30) if schedule.is_due(step, evaluates=True)] == [
        7,
        14,
        21,
        28,
    ]


def test_the_history_counts_the_time_of_all_starts() -> None:
    clock, history = Clock(), JobHistory(starts=2, seconds=100.0)
    schedule = CheckpointSchedule(0, history, clock)
    clock.now = 50.0
    schedule.begin()
    clock.now = 80.0
    schedule.begin()
    assert history == JobHistory(starts=2, seconds=180.0)
