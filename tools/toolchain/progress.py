"""Show how far a job is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

_BAR_WIDTH = 28
_LINE_EVERY_SECONDS = 15.0
_REDRAW_EVERY_SECONDS = 0.2


def say(message: str) -> None:
    """Tell the person; standard output stays free for the result."""
    print(f"tools: {message}", file=sys.stderr, flush=True)


class Progress:
    """Counts steps of one job towards a total that may be unknown (0).

    A thread of its own shows it, since a single big package can take a minute without a step.
    """

    def __init__(
        self,
        title: str,
        total: int = 0,
        stream: TextIO | None = None,
        every: float | None = None,
    ) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._stream = stream or sys.stderr
        self._bar = self._stream.isatty()
        self._every = every or (_REDRAW_EVERY_SECONDS if self._bar else _LINE_EVERY_SECONDS)
        self._started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_showing, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        end = "done" if error is None else "stopped"
        self._show(f"{self._title}: {end} after {self._seconds()} s", end="\n")

    def step(self) -> None:
        """Count one more."""
        self._done += 1

    def _keep_showing(self) -> None:
        while not self._over.wait(self._every):
            self._show(self._text(), end="" if self._bar else "\n")

    def _seconds(self) -> int:
        return round(time.monotonic() - self._started)

    def _text(self) -> str:
        if not self._total:
            return f"{self._title}: {self._done} ({self._seconds()} s)"
        share = min(self._done / self._total, 1.0)
        count = f"{self._done}/{self._total} packages ({self._seconds()} s)"
        if not self._bar:
            return f"{self._title}: {share:.0%}, {count}"
        full = round(share * _BAR_WIDTH)
        return f"{self._title} [{'#' * full}{'.' * (_BAR_WIDTH - full)}] {count}"

    def _show(self, text: str, end: str) -> None:
        clear = "\r\x1b[K" if self._bar else ""
        with contextlib.suppress(OSError):  # a terminal that was closed must not stop a clean-up
            self._stream.write(f"{clear}tools: {text}{end}")
            self._stream.flush()
