"""What a terminal or a notebook shows: a progress bar, log lines over it, no libraries' noise."""

import ctypes
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tpu_core import words
from tpu_training.loop.callbacks import Callback, LoopReport

_WIDTH = 28
# Return to the beginning of the line and clear it. A notebook's cell has no code for that, and
# lines that are longer.
_CLEAR = "\r\x1b[K"
_OVERWRITE = "\r" + " " * 120 + "\r"
# TensorFlow's own variable: 2 shows errors only.
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"

logger = logging.getLogger(__name__)


def clearing(stream: TextIO) -> str:
    """Return what clears a line of `stream`, a terminal or a notebook's cell; "" for others."""
    if stream.isatty():
        return _CLEAR
    # What a kernel has, without importing IPython.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return _OVERWRITE if getattr(shell, "kernel", None) is not None else ""


# Python 3.10 has no StreamHandler[TextIO].
class TerminalHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes log lines over the bar, which reappears at its next update."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._clearing = clearing(stream)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.stream.write(self._clearing)
        super().emit(record)


class ProgressBar:
    """A line that is redrawn in place; nothing where that can't be."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._clearing = stream, clearing(stream)
        self.works = bool(self._clearing)
        self._shown = False

    def show(self, part: float, text: str) -> None:
        """Draw the bar at `part`, 0 to 1, followed by `text`."""
        if self.works:
            done = round(_WIDTH * min(max(part, 0.0), 1.0))
            bar = "█" * done + "░" * (_WIDTH - done)
            self._write(f"{self._clearing}{bar} {part:4.0%} {text}")
            self._shown = True

    def clear(self, last: str = "") -> None:
        """Remove the bar, or write `last` after it."""
        if self._shown:
            self._write(last or self._clearing)
            self._shown = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Progress(Callback):
    """Measures and shows the rate of steps.

    The first loop compiles the step and fills caches, so the rate excludes it once there is a
    second one.
    """

    def __init__(self, global_batch_size: int, stream: TextIO | None = None) -> None:
        """Count steps of `global_batch_size` examples; show them on `stream` (default: stdout)."""
        self._bar = ProgressBar(stream or sys.stdout)
        self._global_batch_size = global_batch_size
        self._loops = 0
        self._steps = 0
        self._seconds = 0.0
        self._started = time.monotonic()

    @property
    def steps_per_second(self) -> float:
        """Steps per second within loops, without checkpoints; 0 before the first loop."""
        return self._steps / self._seconds if self._seconds else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples per second over all replicas."""
        return self.steps_per_second * self._global_batch_size

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Show step, loss, rate and remaining time."""
        if self._loops == 1:
            self._steps, self._seconds = 0, 0.0
        self._loops += 1
        self._steps += report.count
        self._seconds += report.seconds
        left = (report.last_step - step) / self.steps_per_second
        if self._bar.works:
            self._bar.show(
                step / report.last_step,
                words.progress(
                    step,
                    report.last_step,
                    report.loss,
                    self.examples_per_second,
                    left,
                    time.monotonic() - self._started,
                ),
            )
            return
        logger.info(
            "progress step=%d/%d loss=%.4f examples_per_second=%.0f eta=%.0fs",
            step,
            report.last_step,
            report.loss,
            self.examples_per_second,
            left,
        )

    def close(self) -> None:
        """Keep the bar's last state."""
        self._bar.clear("\n")


def quiet_libraries() -> None:
    """Let TensorFlow log errors alone and Google's libraries warn of nothing, from now on.

    TensorFlow's C++ reads its variable when it is loaded, so this comes before its import.
    """
    os.environ.setdefault(_LEVEL, "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"google\.")


@contextmanager
def native_output_hidden() -> Iterator[None]:
    """Discard what C++ and Python write to stdout and stderr while the block runs.

    For calls in the main thread alone: whatever other threads print is lost.
    """
    if os.environ.get(_LEVEL, "0") < "2":
        yield
        return
    _flush()
    kept = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "wb") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    try:
        yield
    finally:
        _flush()
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)


def _flush() -> None:
    """Write out the buffers of Python and of C, each to where it belongs."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
