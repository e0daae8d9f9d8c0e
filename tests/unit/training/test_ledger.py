"""A trainer writes down what it does with its time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from tpu_core.ledger import FINISHED, PARTS, Beginning, Entry, parse_entry
from tpu_training.loop.callbacks import LoopReport
from tpu_training.monitoring.measurements import LedgerWriter, StepTimes, read_ledger

pytestmark = pytest.mark.training


class Scalars:
    """Summaries that keep what they are told."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        self.values.setdefault(step, {}).update(scalars)


class Trainer:
    """A training in virtual time, as job/run.py puts it together."""

    def __init__(self, model_dir: str, reason: str = "") -> None:
        self.now, self.writes, self.summaries = 100.0, 0, Scalars()
        beginning = Beginning(90.0, lambda: self.now)
        with beginning.measure("connect"):
            self.now += 2.0
        self.times = StepTimes(self.summaries, beginning)  # type: ignore[arg-type]
        self.ledger = LedgerWriter(model_dir, self.times, beginning, lambda: reason, self.write)
        self.files: dict[str, str] = {}

    def write(self, path: str, text: str) -> None:
        self.files[path] = text
        self.writes += 1

    def train(self, first: int, last: int, steps: int) -> None:
        for callback in (self.times, self.ledger):
            callback.start(first)
        for step in range(first + 1, last + 1):
            self.now += 1.0
            report = LoopReport(step, steps, 1, 0.5, {}, 0.1, 1.0, 0.0)
            for callback in (self.times, self.ledger):
                callback.between_loops(step, report)
        self.ledger.close()

    @property
    def entry(self) -> Entry:
        ((path, text),) = self.files.items()
        assert "/ledger/2" in path
        found = parse_entry(text)
        assert found
        return found


def test_a_start_writes_its_entry_at_its_begin_each_minute_and_at_its_end(tmp_path: Path) -> None:
    trainer = Trainer(str(tmp_path), "received SIGTERM")
    trainer.train(20, 220, 300)
    assert trainer.writes == 1 + 3 + 1
    found = trainer.entry
    assert (found.first_step, found.last_step, found.duration) == (20, 220, 212.0)
    assert found.seconds["compute"] == 199.0
    assert (found.seconds["load"], found.seconds["connect"]) == (10.0, 2.0)
    assert found.ending == "received SIGTERM"
    assert found.machine


def test_steps_that_a_checkpoint_has_are_written_at_once(tmp_path: Path) -> None:
    """A start that is killed can't say it later."""
    trainer = Trainer(str(tmp_path))
    trainer.train(0, 5, 300)
    trainer.ledger.between_loops(6, LoopReport(6, 300, 1, 0.5, {}, 0.1, 1.0, 0.2))
    assert trainer.entry.last_step == 6


def test_what_is_loaded_while_the_trainer_waits_is_loading() -> None:
    now = 100.0
    beginning = Beginning(90.0, lambda: now)
    with beginning.measure("wait"):
        now += 1.0
        with beginning.measure("load"):
            now += 6.0
        now += 2.0
    assert beginning.seconds == {"load": 16.0, "wait": 3.0, "connect": 0.0, "restore": 0.0}


def test_the_last_evaluations_belong_to_a_finished_start(tmp_path: Path) -> None:
    trainer = Trainer(str(tmp_path))
    trainer.train(0, 10, 10)
    assert trainer.entry.ending == ""
    with trainer.times.evaluating():
        trainer.now += 7.0
    trainer.ledger.finish()
    assert trainer.entry.ending == FINISHED
    assert trainer.entry.seconds["evaluate"] == 7.0
    assert trainer.entry.duration == 12.0 + 10.0 + 7.0


def test_an_evaluation_between_loops_is_not_idle(tmp_path: Path) -> None:
    trainer = Trainer(str(tmp_path))
    trainer.train(0, 5, 10)
    with trainer.times.evaluating():
        trainer.now += 3.0
    trainer.now += 1.5
    trainer.times.between_loops(6, LoopReport(6, 10, 1, 0.5, {}, 0.1, 1.0, 0.0))
    assert trainer.times.seconds["evaluate"] == 3.0
    assert trainer.times.seconds["idle"] == 0.5


def test_an_evaluation_before_the_first_loop_is_not_subtracted_from_it(tmp_path: Path) -> None:
    """As of a resumed training, whose earlier start ended before it evaluated."""
    trainer = Trainer(str(tmp_path))
    with trainer.times.evaluating():
        trainer.now += 30.0
    trainer.train(10, 12, 20)
    assert trainer.entry.seconds["evaluate"] == 30.0
    assert trainer.entry.seconds["start"] == 1.0


def test_garbage_is_named_and_left_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    garbage = {"1.json": b"{", "2.json": b"\xff\xfe\x00", "tpus-1.json": b'{"events": 1}'}
    for name, content in garbage.items():
        (folder / name).write_bytes(content)
    sound = Entry(0.0, 100.0, 0, 40, dict.fromkeys(PARTS, 0.0)).to_json()
    (folder / "3.json").write_text(sound)
    found = read_ledger(str(tmp_path))
    assert found.broken == [*garbage]
    assert found.problems == [f"{n} is not a ledger file and is ignored" for n in garbage]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "3.json": sound.encode(),
        **garbage,
    }


def test_what_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: str) -> None:
        raise OSError("disk full")

    trainer = Trainer(str(tmp_path))
    trainer.ledger._entry._write = full
    with caplog.at_level(logging.WARNING, "tpu_core"):
        trainer.train(0, 70, 70)
        trainer.ledger.finish()
    assert "ledger: not written (disk full)" in caplog.text


def test_a_directory_without_a_ledger_has_an_empty_one(tmp_path: Path) -> None:
    assert not read_ledger(str(tmp_path)).entries
