"""What the agent does about each end of its trainer, a real process of a few words of shell."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tpu_agent.trainer import Surroundings, TpuState, Trainer, tpu_state

READY = TpuState(None)
OUTCOME = 'printf \'{{"exitCode": {}, "cause": "{}", "message": "m"}}\' >"$TPU_TRAINING_OUTCOME"\n'


class World:
    """An agent, its trainer, and what is around them in virtual time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time = 1_000_000.0
        self.said: list[str] = []
        self.finished: list[str] = []
        self.renewed: list[str] = []
        self.tpu = READY
        self.budgets: Mapping[str, int] | None = None
        self.oom_kills = 0
        self.arguments: list[str] = []
        self.going_down = False
        self.told: list[str] = []
        self.around = Surroundings(
            tell=self.told.append,
            now=lambda: self.time,
            say=self.said.append,
            chance=lambda: 1.0,
            tpu=lambda: self.tpu,
            renew=self.renewed.append,
            going_down=lambda: self.going_down,
            budgets=lambda: self.budgets,
            finish=self.finished.append,
            environment=lambda: {"TPU_TRAINING_COST_NOTE": "$1"},
            arguments=lambda: self.arguments,
            oom_kills=lambda: self.oom_kills,
        )
        self.trainer = Trainer(folder, self.around)

    def order(self, script: str) -> None:
        """Order a trainer that is a script; it notes each start."""
        noted = f'cd {self.folder}; echo "$NAME $TPU_TRAINING_COST_NOTE" >>starts\n{script}'
        order = {"finished": "jobs/j/finished", "environment": {"NAME": "n"}}
        text = json.dumps({**order, "command": ["/bin/sh", "-c", noted]})
        (self.folder / "order.json").write_text(text)

    def starts(self) -> int:
        noted = self.folder / "starts"
        return len(noted.read_text().splitlines()) if noted.exists() else 0

    def until(self, condition: Callable[[], bool]) -> None:
        """Look until something is so; the clock goes on only where the trainer is away."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.said
            pause = self.trainer.look()
            if self.trainer.running:
                time.sleep(0.005)
            else:
                self.time += pause

    def rest(self, seconds: float = 3600.0) -> None:
        """Look for so long."""
        end = self.time + seconds
        self.until(lambda: self.time >= end)

    def last(self) -> str:
        return self.said[-1]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.trainer._child.send(signal.SIGKILL)


def test_nothing_is_started_before_it_is_ordered(world: World) -> None:
    world.rest(60)
    world.order("exit 0")
    world.until(lambda: world.starts() == 1)
    assert (world.folder / "starts").read_text() == "n $1\n"


def test_each_start_is_told_the_zones_of_now_after_those_of_its_order(world: World) -> None:
    world.order('echo "$0" >>zones; exit 75')
    world.until(lambda: world.starts() == 1)
    world.arguments = ["--tpu-zone=b,c"]
    world.until(lambda: world.starts() == 2)
    world.until(lambda: (world.folder / "zones").read_text().endswith("--tpu-zone=b,c\n"))


def test_a_finished_job_is_marked_and_not_repeated(world: World) -> None:
    world.order("exit 0")
    world.until(lambda: world.finished == ["jobs/j/finished"])
    world.rest()
    assert (world.starts(), world.finished) == (1, ["jobs/j/finished"])


def test_the_mark_is_tried_again_until_the_bucket_takes_it(world: World) -> None:
    answers: list[OSError | None] = [OSError("503"), OSError("503"), None]

    def finish(path: str) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    world.trainer = Trainer(world.folder, replace(world.around, finish=finish))
    world.order("exit 0")
    world.until(lambda: not answers)
    world.rest()
    assert world.starts() == 1
    assert world.said == ["retrying: 503"]
    assert world.told == ["has finished"]


def test_wrong_input_ends_it_for_good_with_the_trainers_own_words(world: World) -> None:
    world.order(OUTCOME.format(2, "") + "exit 2")
    world.until(lambda: bool(world.said))
    world.rest(90_000)
    assert world.starts() == 1
    assert world.said == ["the trainer is not restarted: exit code 2, wrong input: m"]
    assert world.told == ["has failed: exit code 2, wrong input: m"]


def test_pauses_grow_while_no_step_is_done_and_start_over_after_one(world: World) -> None:
    world.order("exit 1")
    world.until(lambda: len(world.said) >= 9)
    pauses = [int(text.split()[-2]) for text in world.said]
    assert pauses == [4, 8, 16, 32, 64, 128, 256, 300, 300]
    world.order('echo "0 5" >"$TPU_TRAINING_PULSE"; exit 1')
    count = len(world.said)
    world.until(lambda: len(world.said) > count)
    assert world.last() == (
        "the trainer ended with exit code 1 (unknown); it restarts in 2 seconds"
    )


def test_a_clock_that_was_ahead_neither_delays_the_next_start_nor_spends_the_budget(
    world: World,
) -> None:
    world.budgets = {"failure": 1, "preemption": 1}
    world.time += 30 * 86400.0
    world.order("exit 1")
    world.until(lambda: "it restarts in" in " ".join(world.said))
    world.time -= 30 * 86400.0
    begun = world.time
    world.until(lambda: world.starts() == 2)
    assert world.time - begun <= 10
    world.until(lambda: world.trainer._record.handled == 2)
    assert "it restarts in" in world.last()


def test_without_recovery_it_is_started_again_for_ever_as_systemd_does(world: World) -> None:
    world.order('echo "0 5" >"$TPU_TRAINING_PULSE"; exit 1')
    world.until(lambda: world.starts() == 30)


def test_saved_is_no_failure(world: World) -> None:
    world.budgets = {"failure": 0, "preemption": 0}
    world.order("exit 75")
    world.until(lambda: world.starts() == 4)
    assert world.last().endswith("(its progress is saved); it restarts in 2 seconds")


def test_a_machine_that_is_preempted_does_not_begin_again_in_its_last_seconds(world: World) -> None:
    world.going_down = True
    world.order("exit 75")
    world.until(lambda: bool(world.said))
    world.rest(60)
    assert world.starts() == 1


def test_failures_and_preemptions_have_budgets_of_their_own(world: World) -> None:
    world.budgets = {"failure": 2, "preemption": 1}
    world.order("exit 1")
    world.until(lambda: "budget of 2 a day (failure)" in " ".join(world.said))
    world.rest()
    assert world.starts() == 3
    assert world.last().startswith("the trainer is not restarted: unknown, and the budget")
    assert [text.partition(",")[0] for text in world.told] == [
        "has failed after 3 attempts: unknown"
    ]


def test_the_budget_is_one_of_a_day(world: World) -> None:
    world.budgets = {"failure": 2, "preemption": 0}
    world.order('echo "0 5" >"$TPU_TRAINING_PULSE"; exit 1')
    for _ in range(7):
        before = len(world.said)
        world.until(lambda before=before: len(world.said) > before)  # type: ignore[misc]
        world.time += 50_000
    assert not any("not started" in text for text in world.said)


@pytest.mark.parametrize("cause", ["loss-diverged", "device-memory", "disk-full"])
def test_what_another_start_does_not_mend_is_given_up_after_three(world: World, cause: str) -> None:
    world.order(OUTCOME.format(1, cause) + "exit 1")
    world.until(lambda: "not restarted" in " ".join(world.said))
    world.rest(90_000)
    assert world.starts() == 3
    assert world.last() == f"the trainer is not restarted: exit code 1, {cause}: m"


def test_a_failure_that_lets_the_trainer_get_further_each_time_is_not_given_up(
    world: World,
) -> None:
    done = 'wc -l <starts | { read n; echo "0 $((n > 4 ? 4 : n))" >"$TPU_TRAINING_PULSE"; }\n'
    world.order(done + OUTCOME.format(1, "disk-full") + "exit 1")
    world.until(lambda: "not restarted" in " ".join(world.said))
    # Four times further, then twice more at the same step.
    assert world.starts() == 6


@pytest.mark.parametrize("cause", ["version-mismatch", "permission", "api-disabled"])
def test_what_a_person_mends_elsewhere_is_tried_rarely(world: World, cause: str) -> None:
    world.order(OUTCOME.format(1, cause) + "exit 1")
    world.until(lambda: len(world.said) == 2)
    assert world.said[0].endswith(f"({cause}); it restarts in 600 seconds")
    assert world.told == [f"waits until someone fixes it ({cause}): m"]


def test_a_kill_of_the_kernels_for_memory_is_told_from_others(world: World) -> None:
    world.order("kill -9 $$")
    world.until(lambda: bool(world.said))
    assert "(killed)" in world.last()

    def starts_and_fills() -> bool:
        # After the start has been noted, and before its end is.
        world.oom_kills = world.starts()
        return "(host-memory)" in " ".join(world.said)

    world.order("sleep 0.2; kill -9 $$")
    world.until(starts_and_fills)


@pytest.mark.parametrize(
    ("state", "health", "shown", "kind"),
    [
        ("PREEMPTED", "", "t is PREEMPTED (preempted)", "preemption"),
        ("STOPPED", "", "t is STOPPED (stopped)", ""),
        ("REPAIRING", "", "t is REPAIRING (in maintenance)", ""),
        ("READY", "UNHEALTHY_MAINTENANCE", "t is UNHEALTHY_MAINTENANCE (in maintenance)", ""),
        ("CREATING", "", "t is CREATING (not ready yet)", ""),
        (None, "", "t is gone (deleted)", ""),
    ],
)
def test_it_waits_for_a_tpu_that_is_away_and_that_is_no_failure_of_the_trainer(
    world: World, state: str | None, health: str, shown: str, kind: str
) -> None:
    world.budgets = {"failure": 0, "preemption": 1}
    world.tpu = tpu_state("t", state, health, recovered=False)
    assert world.tpu.ending is not None
    assert world.tpu.ending.kind == kind
    world.order(OUTCOME.format(1, "worker-lost") + "exit 1")
    world.until(lambda: bool(world.said))
    world.rest()
    assert world.starts() == 1
    (said,) = world.said
    assert said.startswith(f"{shown}: the trainer waits until it is READY")
    world.tpu = READY
    world.order("exit 0")
    world.until(lambda: world.starts() == 2)


def test_a_trainer_that_has_just_lost_its_tpu_starts_while_the_agent_recreates_it(
    world: World,
) -> None:
    """It loads TensorFlow meanwhile; one that finds the TPU away still waits for it."""
    world.budgets = {"failure": 0, "preemption": 9}
    world.tpu = tpu_state("t", "PREEMPTED", "", recovered=True)
    world.order('[ -e ran ] || echo "0 5" >"$TPU_TRAINING_PULSE"; touch ran; exit 1')
    world.until(lambda: world.starts() == 2)
    assert world.last() == (
        "the trainer ended with exit code 1 (preempted); it restarts in 0 seconds"
    )
    world.rest()
    assert world.starts() == 2
    assert world.last().startswith("t is PREEMPTED (preempted): the trainer waits")


@pytest.mark.parametrize(("state", "health"), [("READY", "HEALTHY"), ("READY", ""), ("NEW", "")])
def test_it_does_not_wait_for_a_tpu_that_works_or_is_in_a_state_that_is_unknown(
    state: str, health: str
) -> None:
    assert tpu_state("t", state, health, recovered=True) == READY


def test_a_silent_api_does_not_keep_the_trainer_from_its_next_start(world: World) -> None:
    def silent() -> TpuState:
        raise OSError("HTTP status 503")

    world.trainer = Trainer(world.folder, replace(world.around, tpu=silent))
    world.order("exit 1")
    world.until(lambda: world.starts() == 2)
    assert world.said[0] == "the TPU's state is unknown: HTTP status 503"


def test_a_trainer_that_is_late_by_its_own_word_is_ended_and_counts_as_hung(world: World) -> None:
    deadline = f'echo "{world.time + 5:.0f} 3" >"$TPU_TRAINING_PULSE"'
    world.order(f"trap 'exit 1' TERM; {deadline}; while :; do sleep 0.01; done")
    world.until(lambda: (world.folder / "pulse").exists())
    for _ in range(70):
        # A long compilation is within what it has said.
        world.trainer.look()
    assert world.said == []
    world.time += 6
    world.until(lambda: "(hung)" in " ".join(world.said))
    assert world.said[0] == "the trainer hangs: no step before its deadline"


HANGS = OUTCOME.format(1, "hung") + "exit 1"


@pytest.mark.parametrize("cause", ["hung", "bucket-credentials"])
def test_a_tpu_on_which_the_trainer_fails_twice_in_a_row_by_its_hosts_is_recreated(
    world: World, cause: str
) -> None:
    world.budgets = {"failure": 9, "preemption": 9}
    world.order(OUTCOME.format(1, cause) + "exit 1")
    world.until(lambda: world.starts() == 2)
    assert world.renewed == []
    world.until(lambda: world.starts() == 3)
    assert world.renewed == [f"its trainer ended 2 times in a row: {cause}"]
    world.until(lambda: world.starts() == 5)
    assert len(world.renewed) == 2
    world.rest()
    assert "the budget of 9" in world.last()
    assert world.starts() == 10


def test_the_next_trainer_waits_for_the_tpu_that_is_recreated_and_so_does_another_agents(
    world: World,
) -> None:
    def refuse(why: str) -> None:
        raise OSError("HTTP status 503")

    world.budgets = {"failure": 9, "preemption": 9}
    world.trainer = Trainer(world.folder, replace(world.around, renew=refuse))
    world.order(HANGS)
    world.until(lambda: world.said[-1:] == ["retrying: HTTP status 503"])
    world.rest()
    assert world.starts() == 2
    world.trainer = Trainer(world.folder, world.around)
    world.tpu = tpu_state("t", "CREATING", "", recovered=True)
    world.rest()
    assert (world.starts(), len(world.renewed)) == (2, 1)
    world.tpu = READY
    world.until(lambda: world.starts() == 3)


def test_garbage_from_the_trainer_counts_as_nothing(world: World) -> None:
    garbage = 'echo "}" >"$TPU_TRAINING_OUTCOME"; echo x >"$TPU_TRAINING_PULSE"; sleep 0.1; exit 1'
    world.order(garbage)
    world.until(lambda: world.starts() == 2)
    assert "(unknown)" in world.said[0]


def test_sigterm_is_passed_on_and_waited_for(world: World) -> None:
    ready = world.folder / "ready"
    world.order(f"trap 'sleep 0.2; exit 75' TERM; touch {ready}; while :; do sleep 0.01; done")
    world.until(ready.exists)
    world.trainer.stop()
    assert (world.folder / "code").read_text() == "1 75\n"


def test_another_agent_adopts_a_trainer_and_knows_how_it_ended(world: World) -> None:
    world.order("sleep 0.3; exit 2")
    world.until(lambda: world.starts() == 1)
    world.trainer = Trainer(world.folder, world.around)
    assert world.last() == "the trainer is already running: another agent started it"
    world.until(lambda: "exit code 2, wrong input" in world.last())
    # And a third knows that this was dealt with.
    world.trainer = Trainer(world.folder, world.around)
    world.rest()
    assert world.starts() == 1


def test_a_garbage_record_is_like_none(world: World) -> None:
    (world.folder / "record.json").write_text('{"number": "x", "what": 1}')
    world.trainer = Trainer(world.folder, world.around)
    world.order("exit 0")
    world.until(lambda: bool(world.finished))
