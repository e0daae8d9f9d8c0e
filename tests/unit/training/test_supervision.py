"""What a supervisor is told: that the trainer lives, and how it ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpu_training.__main__ import main
from tpu_training.errors import translate
from tpu_training.job.supervision import OUTCOME, PULSE, HangTimer, Pulse, write_outcome


@pytest.fixture
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(OUTCOME, str(tmp_path / "outcome"))
    monkeypatch.setenv(PULSE, str(tmp_path / "pulse"))
    return tmp_path / "outcome"


def test_the_outcome_has_the_exit_code_and_the_words_that_people_see(
    outcome: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["train", f"--data={tmp_path}/none", f"--model-dir={tmp_path}/m"])
    told = json.loads(outcome.read_text("utf-8"))
    assert told["exitCode"] == code == 2
    assert f"training failed: {told['message']}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Socket closed", "worker-lost"),
        ("Op type not registered 'XlaSend' in binary running on n-1.", "version-mismatch"),
        ("OOM when allocating", "device-memory"),
        ("never seen", ""),
    ],
)
def test_the_cause_is_the_id_of_the_catalog(text: str, cause: str) -> None:
    assert translate(RuntimeError(text)).cause == cause


def test_the_pulse_says_until_when_and_which_step_and_is_written_once_a_second(
    outcome: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([100.0, 100.5, 101.5])
    monkeypatch.setattr("tpu_training.job.supervision.time.monotonic", lambda: next(moments))
    monkeypatch.setattr("tpu_training.job.supervision.time.time", lambda: 1000.0)
    pulse, file = Pulse(), outcome.parent / "pulse"
    pulse.beat(2400.0, None)
    assert file.read_text("utf-8") == "3400 -1"
    pulse.beat(1800.0, 7)
    assert file.read_text("utf-8") == "3400 -1"
    pulse.beat(1800.0, 8)
    assert file.read_text("utf-8") == "2800 8"


def test_a_first_loop_that_compiles_may_take_longer_than_those_after_it(outcome: Path) -> None:
    timer = HangTimer(end=lambda message, code: None)
    timer.watch(1800.0, first=600.0)
    first = float((outcome.parent / "pulse").read_text("utf-8").split()[0])
    timer.reset()
    later = float((outcome.parent / "pulse").read_text("utf-8").split()[0])
    assert 599 <= first - later <= 601


def test_without_a_limit_there_is_no_deadline(outcome: Path) -> None:
    HangTimer(end=lambda message, code: None).watch(0.0, first=600.0)
    assert (outcome.parent / "pulse").read_text("utf-8") == "0 -1"


def test_nothing_is_written_where_nobody_asks_or_where_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OUTCOME, raising=False)
    write_outcome(1, "", "m")
    monkeypatch.setenv(OUTCOME, str(tmp_path / "missing/outcome"))
    write_outcome(1, "", "m")
    assert list(tmp_path.iterdir()) == []
