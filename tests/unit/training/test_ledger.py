"""A trainer writes down what it does with its time, and shows it in TensorBoard."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tpu_training.goodput.ledger import FINISHED, PARTS, Beginning, Entry, parse_entry
from tpu_training.goodput.ledger import Ledger as WholeLedger
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
        self.ledger = LedgerWriter(
            model_dir,
            self.times,
            90.0,
            self.summaries,  # type: ignore[arg-type]
            lambda: reason,
            lambda: self.now,
            self.write,
        )
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


def test_tensorboard_gets_the_parts_of_the_wall_time_of_all_starts(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    parts = dict.fromkeys(PARTS, 0.0) | {"compute": 100.0}
    (folder / "1.json").write_text(Entry(0.0, 100.0, 0, 40, parts).to_json())
    (folder / "2.json").write_text("garbage")
    trainer = Trainer(str(tmp_path))
    trainer.train(20, 90, 90)
    trainer.ledger.finish()
    for parts in trainer.summaries.values.values():
        shown = {tag: part for tag, part in parts.items() if tag.startswith("wall_time/")}
        assert not shown or sum(shown.values()) == pytest.approx(1.0)
    last = trainer.summaries.values[90]
    assert all(tag > "train/loss" for tag in shown), "TensorBoard shows cards by their names"
    assert last["wall_time/lost"] == pytest.approx(0.5 * last["wall_time/step"] * 100 / 119)


def test_garbage_is_told_and_never_fatal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    garbage = {"1.json": b"{", "2.json": b"\xff\xfe\x00", "tpus-1.json": b'{"events": 1}'}
    for name, content in garbage.items():
        (folder / name).write_bytes(content)
    (folder / "3.json").write_text(Entry(0.0, 100.0, 0, 40, dict.fromkeys(PARTS, 0.0)).to_json())
    trainer = Trainer(str(tmp_path))
    trainer.train(20, 90, 90)
    trainer.ledger.finish()
    for name in garbage:
        assert f"{name} is damaged; it is left out" in caplog.text
    assert trainer.summaries.values[90]["wall_time/step"] > 0.0
    assert read_ledger(str(tmp_path)).broken == list(garbage)


def test_its_own_file_is_no_garbage_while_it_is_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(str(tmp_path))
    own = Path(trainer.ledger._path)
    own.parent.mkdir()
    own.write_text("")
    trainer.train(0, 90, 90)
    trainer.ledger.finish()
    assert "damaged" not in caplog.text
    assert own.exists()


def test_what_cannot_be_written_or_read_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: str) -> None:
        raise OSError("disk full")

    trainer = Trainer(str(tmp_path))
    trainer.ledger._write = full
    monkeypatch.setattr("tpu_training.monitoring.measurements.read_ledger", full)
    with caplog.at_level(logging.WARNING, "tpu_training"):
        trainer.train(0, 70, 70)
        trainer.ledger.finish()
    assert "ledger: not read (disk full)" in caplog.text
    assert "ledger: not written (disk full)" in caplog.text


def test_no_step_waits_for_the_ledger_of_all_starts_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of files in a bucket take their time."""
    read, empty = threading.Event(), read_ledger(str(tmp_path))

    def slow(_: str) -> WholeLedger:
        assert read.wait(60)
        return empty

    monkeypatch.setattr("tpu_training.monitoring.measurements.read_ledger", slow)
    trainer = Trainer(str(tmp_path))
    trainer.train(0, 90, 90)
    shown = {tag for values in trainer.summaries.values.values() for tag in values}
    assert shown
    assert not any(tag.startswith("wall_time/") for tag in shown)
    read.set()
    trainer.ledger.finish()
    assert trainer.summaries.values[90]["wall_time/step"] > 0


def test_a_directory_without_a_ledger_has_an_empty_one(tmp_path: Path) -> None:
    assert not read_ledger(str(tmp_path)).entries
