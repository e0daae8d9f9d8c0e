"""A progress bar on a terminal that log lines pass by without tearing it."""

import logging
from typing import TextIO

_WIDTH = 28
# To the line's begin, and delete what was there.
_CLEAR = "\r\x1b[K"


class TerminalHandler(logging.StreamHandler[TextIO]):
    """Writes log lines where the bar was; the bar comes back with its next change."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.stream.write(_CLEAR)
        super().emit(record)


class ProgressBar:
    """One line that is drawn over and over."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on `stream`, a terminal."""
        self._stream = stream
        self._shown = False

    def show(self, part: float, text: str) -> None:
        """Draw `part`, 0 to 1, and `text` behind it."""
        done = round(_WIDTH * min(max(part, 0.0), 1.0))
        bar = "█" * done + "░" * (_WIDTH - done)
        self._stream.write(f"{_CLEAR}{bar} {part:4.0%} {text}")
        self._stream.flush()
        self._shown = True

    def close(self) -> None:
        """Leave the last state standing and begin a new line."""
        if self._shown:
            self._stream.write("\n")
            self._stream.flush()
            self._shown = False
