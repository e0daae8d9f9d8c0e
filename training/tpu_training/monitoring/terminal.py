"""A terminal progress bar that coexists with log lines."""

import logging
from typing import TextIO

_WIDTH = 28
# Return to the beginning of the line and clear it.
_CLEAR = "\r\x1b[K"


class TerminalHandler(logging.StreamHandler[TextIO]):
    """Writes log lines over the bar, which reappears at its next update."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.stream.write(_CLEAR)
        super().emit(record)


class ProgressBar:
    """A line that is redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        """Draw on `stream`, a terminal."""
        self._stream = stream
        self._shown = False

    def show(self, part: float, text: str) -> None:
        """Draw the bar at `part`, 0 to 1, followed by `text`."""
        done = round(_WIDTH * min(max(part, 0.0), 1.0))
        bar = "█" * done + "░" * (_WIDTH - done)
        self._stream.write(f"{_CLEAR}{bar} {part:4.0%} {text}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Remove the bar."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = False

    def close(self) -> None:
        """Keep the last state and begin a new line."""
        if self._shown:
            self._stream.write("\n")
            self._stream.flush()
            self._shown = False
