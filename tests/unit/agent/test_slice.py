"""The trainer on two hosts of a slice: processes of a few words of shell, in virtual time."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE, until
from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore
from tpu_agent.jobs.environment import of_jax
from tpu_agent.jobs.queue import Outcome
from tpu_agent.slice import Follower, World
from tpu_agent.trainer import Others, Surroundings, TpuState, Trainer
from tpu_core import paths, records
from tpu_core.google import GoogleError

HOSTS = ["10.0.0.2", "10.0.0.3"]
TRAINS = "trap 'exit 75' TERM; while :; do sleep 0.02; done"
OUTCOME = 'printf \'{{"exitCode": {0}, "cause": "{1}", "message": "m"}}\' >"$TPU_TRAINING_OUTCOME"'


class Slice:
    """Two hosts, a bucket, and what worker 0's agent says and does."""

    def __init__(self, folder: Path) -> None:
        self.bucket = Bucket(Clock(1_000_000.0))
        self.folder, self.broken = folder, False
        self.said: list[str] = []
        self.told: list[str] = []
        self.finished: list[str] = []
        self.said_on_1: list[str] = []
        self.lives = True
        self.folders = [folder / "0", folder / "1"]
        self.trainer = self._worker_0()
        self.follower = self.boot()

    def _worker_0(self) -> Trainer:
        now = self.bucket.clock.now
        around = Surroundings(
            now=now,
            say=self.said.append,
            tell=self.told.append,
            chance=lambda: 0.0,
            tpu=lambda: TpuState(None),
            renew=lambda _: None,
            going_down=lambda: False,
            budgets=lambda: None,
            finish=self.finished.append,
            environment=lambda: of_jax(HOSTS, 0),
            arguments=list,
            oom_kills=lambda: 0,
            others=Others(MemoryStore(self.bucket, self._answer), "t", 2, now),
        )
        return Trainer(self.folders[0], around)

    def boot(self) -> Follower:
        """Start the agent of host 1, maybe again."""
        now, environment = self.bucket.clock.now, lambda: of_jax(HOSTS, 1)
        world = World(now, self.said_on_1.append, environment, list)
        return Follower(self.folders[1], MemoryStore(self.bucket, self._answer), "t", 1, world)

    def _answer(self) -> None:
        if self.broken:
            raise GoogleError(503, "try again")

    def report(self, start: int, host: int, outcome: Outcome) -> None:
        path = f"{paths.trainers('t', start)}{host}.json"
        self.bucket.put(path, b"", records.stamped(vars(outcome)))

    def order(self, *scripts: str) -> None:
        """Order a trainer on each host; it notes each start."""
        for folder, script in zip(self.folders, scripts, strict=True):
            note = 'echo "$JAX_PROCESS_ID/$JAX_NUM_PROCESSES $JAX_COORDINATOR_ADDRESS" >>starts'
            command = ["/bin/sh", "-c", f"cd {folder}; {note}\n{script}"]
            order = {"finished": "jobs/j/finished", "environment": {}, "command": command}
            (folder / "order.json").write_text(json.dumps(order))

    def starts(self, host: int) -> list[str]:
        noted = self.folders[host] / "starts"
        return noted.read_text().splitlines() if noted.exists() else []

    def counts(self) -> list[int]:
        return [len(self.starts(host)) for host in (0, 1)]

    def look(self) -> None:
        self.trainer.look()
        if self.lives:
            self.follower.look()
        self.bucket.clock.seconds += 10.0
        time.sleep(0.005)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, (self.said, self.said_on_1)
            self.look()

    def rest(self, seconds: float = 600.0) -> None:
        end = self.bucket.clock.seconds + seconds
        self.until(lambda: self.bucket.clock.seconds >= end)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Slice]:
    made = Slice(tmp_path)
    yield made
    for process in (made.trainer._child, made.follower._process):
        process.send(signal.SIGKILL)


def once(script: str, then: str = TRAINS) -> str:
    """A script whose first start is another."""
    return f"if ! [ -e first ]; then touch first; {script}\nfi\n{then}"


def test_each_host_is_told_where_the_first_is_how_many_there_are_and_its_own_number(
    hosts: Slice,
) -> None:
    hosts.order(TRAINS, TRAINS)
    hosts.until(lambda: hosts.counts() == [1, 1])
    hosts.rest(1500)
    assert hosts.starts(0) == ["0/2 10.0.0.2:8476"]
    assert hosts.starts(1) == ["1/2 10.0.0.2:8476"]


def test_the_end_of_worker_0_ends_the_others_and_the_training(hosts: Slice) -> None:
    hosts.order("while ! [ -e done ]; do sleep 0.02; done", TRAINS)
    hosts.until(lambda: hosts.counts() == [1, 1])
    (hosts.folders[0] / "done").touch()
    hosts.until(lambda: bool(hosts.finished) and not hosts.follower.running)
    hosts.rest()
    assert hosts.finished == ["jobs/j/finished"]
    assert hosts.counts() == [1, 1]


def test_a_trainer_that_ends_first_on_another_host_ends_nothing(hosts: Slice) -> None:
    hosts.order(TRAINS, "exit 0")
    hosts.until(lambda: hosts.counts() == [1, 1])
    hosts.rest()
    assert hosts.counts() == [1, 1]
    assert hosts.trainer.running


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_on_one_host_restarts_all(hosts: Slice, failing: int) -> None:
    scripts = [TRAINS, TRAINS]
    scripts[failing] = once("exit 1")
    hosts.order(*scripts)
    hosts.until(lambda: hosts.counts() == [2, 2])
    hosts.rest()
    assert hosts.counts() == [2, 2]
    assert hosts.trainer.running
    assert hosts.follower.running


def test_what_another_host_says_of_its_end_decides_what_becomes_of_the_training(
    hosts: Slice,
) -> None:
    hosts.order(TRAINS, OUTCOME.format(2, "input") + "; exit 2")
    hosts.until(lambda: bool(hosts.told))
    hosts.rest()
    assert hosts.counts() == [1, 1]
    assert hosts.told == [
        "has failed: exit code 2, wrong input: host 1 of the TPU: m",
    ]
    assert not hosts.trainer.running


def test_an_end_is_told_that_is_longer_than_metadata_may_be(hosts: Slice) -> None:
    told = {"exitCode": 2, "cause": "input", "message": f"no file \udcff{'x' * 9000}"}
    (hosts.folders[1] / "told").write_text(json.dumps(told))
    hosts.order(TRAINS, 'cp told "$TPU_TRAINING_OUTCOME"; exit 2')
    hosts.until(lambda: bool(hosts.told))
    assert "host 1 of the TPU: no file \\udcffx" in hosts.told[0]
    assert len(hosts.told[0]) < 400


def test_a_cause_that_worker_0_knows_itself_counts_before_the_others(hosts: Slice) -> None:
    both = OUTCOME.format(1, "{}") + "; exit 1"
    hosts.order(both.replace("{}", "loss-diverged"), both.replace("{}", "unreachable"))
    hosts.until(lambda: bool(hosts.told))
    assert "loss-diverged" in hosts.told[0]


def test_a_trainer_that_has_lost_another_host_waits_for_what_that_one_says(hosts: Slice) -> None:
    culprit = "sleep 0.3; " + OUTCOME.format(2, "input") + "; exit 2"
    hosts.order(OUTCOME.format(1, "lost-host") + "; exit 1", culprit)
    hosts.until(lambda: bool(hosts.told))
    hosts.rest()
    assert hosts.told == ["has failed: exit code 2, wrong input: host 1 of the TPU: m"]
    assert hosts.counts() == [1, 1]


def test_a_trainer_that_has_lost_another_host_restarts_where_that_one_says_nothing(
    hosts: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_agent.trainer._NEWS", 0.2)
    hosts.lives = False
    hosts.order(once(OUTCOME.format(1, "lost-host") + "; exit 1"), TRAINS)
    hosts.until(lambda: len(hosts.starts(0)) == 2)
    assert any("exit code 1 (lost-host)" in text for text in hosts.said)


def test_what_the_host_says_that_failed_first_counts_before_those_that_have_lost_it(
    hosts: Slice,
) -> None:
    hosts.report(7, 1, Outcome("lost-host", 1, "host 2 failed"))
    hosts.report(7, 2, Outcome("input", 2, "no such file"))
    failed = Others(MemoryStore(hosts.bucket), "t", 3, hosts.bucket.clock.now).failure(7, soon=True)
    assert failed == Outcome("input", 2, "host 2 of the TPU: no such file")


def test_a_host_that_has_lost_worker_0_does_not_hide_why_that_one_ended(hosts: Slice) -> None:
    hosts.order(once("until [ -e end ]; do sleep 0.02; done; kill -9 $$"), TRAINS)
    hosts.until(lambda: hosts.counts() == [1, 1])
    hosts.lives = False
    hosts.report(hosts.trainer._record.on_all_hosts, 1, Outcome("lost-host", 1, "m"))
    (hosts.folders[0] / "end").touch()
    until(lambda: not hosts.trainer._child.running())
    hosts.until(lambda: len(hosts.starts(0)) == 2)
    assert any("exit code 137 (killed)" in text for text in hosts.said), hosts.said


def test_a_host_that_tells_nothing_for_ten_minutes_restarts_all(hosts: Slice) -> None:
    hosts.order(TRAINS, TRAINS)
    hosts.until(lambda: hosts.counts() == [1, 1])
    hosts.rest(120)
    hosts.lives = False
    hosts.until(lambda: len(hosts.starts(0)) == 2)
    (said,) = [text for text in hosts.said if "ended on all hosts" in text]
    assert "host 1 of the TPU: it has stopped reporting for 10 minutes" in said
    hosts.lives = True
    hosts.until(lambda: hosts.counts() == [2, 2])


def test_a_host_whose_agent_was_killed_keeps_its_trainer(hosts: Slice) -> None:
    hosts.order(TRAINS, TRAINS)
    hosts.until(lambda: hosts.counts() == [1, 1])
    hosts.follower = hosts.boot()
    assert hosts.follower.running
    hosts.rest(1500)
    assert hosts.counts() == [1, 1]


def test_a_host_starts_nothing_before_its_own_order(hosts: Slice) -> None:
    hosts.order(TRAINS, TRAINS)
    (hosts.folders[1] / "order.json").rename(hosts.folders[1] / "later.json")
    hosts.rest(60)
    assert hosts.counts() == [1, 0]
    (hosts.folders[1] / "later.json").rename(hosts.folders[1] / "order.json")
    hosts.until(lambda: hosts.counts() == [1, 1])


def test_a_host_that_can_make_no_process_tries_again(
    hosts: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, failed = hosts.follower._process.begin, list[int]()

    def fails_once(number: int, *rest: Any) -> bool:
        if not failed:
            failed.append(number)
            raise BlockingIOError("no process can be made")
        return begin(number, *rest)

    monkeypatch.setattr(hosts.follower._process, "begin", fails_once)
    hosts.order(TRAINS, TRAINS)
    hosts.rest(120)
    assert hosts.counts() == [1, 1]


def test_a_bucket_that_does_not_answer_ends_no_trainer(hosts: Slice) -> None:
    hosts.order(TRAINS, TRAINS)
    hosts.until(lambda: hosts.counts() == [1, 1])
    hosts.broken = True
    hosts.rest()
    assert hosts.trainer.running
    assert hosts.follower.running
    hosts.broken = False
    hosts.rest()
    assert hosts.counts() == [1, 1]


def test_a_host_that_does_not_end_is_killed(hosts: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_agent.slice.GRACE", 0.2)
    hosts.order(once("exit 1"), once("trap '' TERM; while :; do sleep 0.02; done"))
    hosts.until(lambda: hosts.counts() == [2, 2])


def test_reports_of_earlier_starts_are_deleted(hosts: Slice) -> None:
    hosts.order(once("sleep 0.2; exit 1"), TRAINS)
    hosts.until(lambda: hosts.counts() == [2, 2])
    hosts.rest(120)
    (report,) = [path for path in hosts.bucket.things if path.startswith("slices/t.trainer/")]
    assert report == f"slices/t.trainer/{hosts.trainer._record.on_all_hosts}/1.json"


def test_a_machine_that_goes_down_ends_its_trainer(hosts: Slice) -> None:
    hosts.order(TRAINS, TRAINS)
    hosts.until(lambda: hosts.counts() == [1, 1])
    hosts.follower.stop()
    assert not hosts.follower._process.running()
