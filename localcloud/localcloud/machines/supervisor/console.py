"""Where a machine's output goes: the serial port and the journal."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

_KEPT = 10_000


@dataclass(frozen=True)
class Entry:
    """A line of the journal."""

    when: float
    unit: str
    identifier: str
    pid: int
    text: str


class Console:
    """Serial port 1 (a file that only grows) and the journal of this boot.

    Lines on the serial port look as journald forwards them to a console:
    `[   12.345678] identifier[pid]: text`, in seconds since the boot.
    """

    def __init__(self, serial: Path) -> None:
        self._serial = os.open(serial, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._booted = time.monotonic()
        self._journal: deque[Entry] = deque(maxlen=_KEPT)

    def firmware(self, text: str) -> None:
        """Print a line on the serial port as firmware does, before there is a clock."""
        os.write(self._serial, f"{text}\n".encode())

    def kernel(self, text: str) -> None:
        """Print a line on the serial port that no process wrote."""
        self._print(text)

    def log(self, unit: str, identifier: str, pid: int, text: str, *, console: bool) -> None:
        """Keep a line in the journal and, if asked, print it on the serial port."""
        self._journal.append(Entry(time.time(), unit, identifier, pid, text))
        if console:
            self._print(f"{identifier}[{pid}]: {text}")

    def manager(self, unit: str, text: str) -> None:
        """Log what the service manager says about a unit."""
        self.log(unit, "systemd", 1, text, console=True)

    def journal(self, units: set[str]) -> list[Entry]:
        """Return the journal's lines of the named units; of all when none is named."""
        return [entry for entry in self._journal if not units or entry.unit in units]

    def _print(self, text: str) -> None:
        elapsed = time.monotonic() - self._booted
        os.write(self._serial, f"[{elapsed:12.6f}] {text}\n".encode("utf-8", "replace"))
