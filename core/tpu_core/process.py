"""A process, so that others can tell later whether it still runs.

A process number alone proves nothing: numbers are used again, and containers on one machine have
the same host name and each their own process 12. So an identity has the boot, the namespace and
the moment at which the process began; what runs on another machine is unknown, not dead.
"""

import os
import socket
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tpu_core import records

_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process of any machine.

    Attributes:
        run: what it does, by a name that no other process has.
        machine: the machine's name, for people.
        process: its number.
        place: the boot and the process namespace in which that is a number; empty if unknown.
        began: when it began, in ticks since the boot; empty if unknown.
        since: when it was described, by its own clock, for people.
    """

    run: str
    machine: str
    process: int
    place: str
    began: str
    since: str

    @classmethod
    def of(cls, process: int) -> "Process":
        """Return a process of this machine."""
        since = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        name, when = socket.gethostname(), began(process) or ""
        return cls(uuid.uuid4().hex, name, process, place(), when, since)

    @classmethod
    def this_process(cls) -> "Process":
        """Return this process."""
        return cls.of(os.getpid())

    def __str__(self) -> str:
        """Name it in a message."""
        return f"process {self.process} on {self.machine} (since {self.since})"

    def is_gone(self) -> bool:
        """Return whether it is known to have ended; of another machine nothing is known."""
        return self._was_here() and began(self.process) != self.began

    def is_here(self) -> bool:
        """Return whether it is known to run on this machine."""
        return self._was_here() and began(self.process) == self.began

    def _was_here(self) -> bool:
        return bool(self.place and self.began) and self.place == place()


def parse(text: str) -> Process | None:
    """Return the process in a record; None if that is damaged or of another format."""
    try:
        return records.load(Process, text)
    except records.Unreadable:
        return None


def place() -> str:
    """Return the boot and the process namespace of this process; empty if unknown (no /proc)."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def began(process: int) -> str | None:
    """Return when a process began, in ticks since the boot; None if it has ended (or a zombie)."""
    try:
        text = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # proc(5): the name, which may hold anything, is in parentheses; state is field 3, start 22.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
