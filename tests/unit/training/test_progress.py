from __future__ import annotations

import io
import logging

import pytest

from tpu_training.loop.callbacks import LoopReport
from tpu_training.monitoring.terminal import Progress, ProgressBar, TerminalHandler


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(step: int) -> LoopReport:
    return LoopReport(step, 100, 10, 0.5, {"accuracy": 0.9}, 0.1, 2.0, 0.0)


def test_a_terminal_gets_a_bar_with_rate_loss_and_time_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    terminal = Terminal()
    progress = Progress(64, terminal)
    with caplog.at_level(logging.INFO, "tpu_training"):
        for step in (10, 20, 50):
            progress.between_loops(step, report(step))
        progress.close()
    last = terminal.getvalue().split("\r\x1b[K")[-1]
    assert last == f"{'█' * 14}{'░' * 14}  50% 50/100 · loss 0.500 · 320 ex/s · 0:00 · 10 s left\n"
    assert caplog.text == ""


def test_without_a_terminal_each_loop_logs_a_line(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    progress = Progress(64, stream)
    with caplog.at_level(logging.INFO, "tpu_training"):
        progress.between_loops(10, report(10))
        progress.close()
    assert "progress step=10/100 loss=0.5000 examples_per_second=320 eta=18s" in caplog.text
    assert stream.getvalue() == ""


def test_a_log_line_takes_the_place_of_the_bar() -> None:
    terminal = Terminal()
    bar = ProgressBar(terminal)
    bar.show(0.25, "a quarter")
    TerminalHandler(terminal).emit(logging.makeLogRecord({"msg": "checkpoint: saved"}))
    bar.show(0.5, "a half")
    bar.clear("\n")
    lines = terminal.getvalue().split("\n")
    assert lines[0].endswith("a quarter\r\x1b[Kcheckpoint: saved")
    assert lines[1].startswith("\r\x1b[K")
    assert lines[1].endswith("a half")


def test_log_lines_need_no_python_newer_than_3_10() -> None:
    assert not hasattr(TerminalHandler, "__orig_bases__"), "StreamHandler[TextIO] is of 3.11"
