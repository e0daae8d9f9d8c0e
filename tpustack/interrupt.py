"""Ctrl-C, `kill` and a closed terminal: each ends a command with one line."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The command was told to end.

    Not a KeyboardInterrupt: libraries on the way catch those, and end with words of their own.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)

    @property
    def patient(self) -> bool:
        """Return whether somebody waits at the terminal; who sends other signals soon kills."""
        return self.number == signal.SIGINT

    @property
    def exit_code(self) -> int:
        """Return the exit code that shells expect."""
        return 128 + self.number


_came = threading.Event()
hurry = threading.Event()
"""Is set by the second signal: whoever cleans up hurries."""


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Raise Interrupted in this block, once, when the process is told to end."""
    _came.clear()
    hurry.clear()
    before = {number: signal.signal(number, _handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(number: int, frame: FrameType | None) -> None:
    if _came.is_set():
        hurry.set()
    else:
        _came.set()
        raise Interrupted(number)
