"""Run other programs so that none of them outlives this one, and show how far they are.

A bar on a terminal, a line now and then in a log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TextIO

from toolchain.pins import ToolchainError, without_hosts

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_SECONDS = 5.0
_LAST_LINES = 15
_BAR_WIDTH = 28
_LINE_EVERY_SECONDS = 15.0
_REDRAW_EVERY_SECONDS = 0.2


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda _: None,
) -> str:
    """Run a command and return its standard output; `on_line` sees each line of its errors."""
    process: subprocess.Popen[str] | None = None
    errors: list[str] = []
    try:
        with _held_back():
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=cwd,
                env=None if env is None else {**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that its children can be stopped with it
            )
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=_read, args=(process.stderr, errors, on_line), daemon=True)
        reader.start()
        output = process.stdout.read()
        process.wait()
        reader.join()
    except BaseException:
        if process:
            _stop(process)
        raise
    if process.returncode != 0:
        said = without_hosts("".join(errors) or output).strip()
        last = "\n".join(said.splitlines()[-_LAST_LINES:])
        raise ToolchainError(f"{Path(str(command[0])).name} failed:\n{last}")
    return output


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Let signals wait: a program that is being started cannot be stopped yet."""
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in STOPS
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _read(stream: IO[str], lines: list[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        lines.append(line)
        on_line(line)


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process and its children: politely first, then for sure."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_SECONDS)
            return


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
