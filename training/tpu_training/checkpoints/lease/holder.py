"""Who holds a lease: a process, named so that others can find it, or see that it is gone."""

import dataclasses
import json
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

_FORMAT = 1
_PROC = Path("/proc")


@dataclass(frozen=True)
class Holder:
    """A process that trains.

    Attributes:
        run: Different for each process that ever held a lease.
        machine: The machine's name, for people.
        process: The process's number.
        place: The boot and the process namespace in which `process` is a number; empty if unknown.
        began: When the process began, in ticks since the boot; empty if unknown.
        since: When it asked for the lease, by its own clock, for people.
    """

    run: str
    machine: str
    process: int
    place: str
    began: str
    since: str

    @classmethod
    def this_process(cls) -> "Holder":
        """Return this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, process: int) -> "Holder":
        """Return a process of this machine."""
        since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(
            uuid.uuid4().hex, socket.gethostname(), process, place(), began(process) or "", since
        )

    def to_json(self) -> str:
        """Return the text that is kept with the lease."""
        content = {"format": _FORMAT, **dataclasses.asdict(self)}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"

    def describe(self) -> str:
        """Name the process in a message."""
        return f"process {self.process} on {self.machine} (since {self.since})"

    def is_gone(self) -> bool:
        """Return whether it is known to have ended; of another machine nothing is known."""
        return self._was_here() and began(self.process) != self.began

    def is_here(self) -> bool:
        """Return whether it is known to run on this machine."""
        return self._was_here() and began(self.process) == self.began

    def _was_here(self) -> bool:
        return bool(self.place and self.began) and self.place == place()


def parse_holder(text: str) -> Holder | None:
    """Return the holder in a lease's text; None if that is garbage or of another format."""
    try:
        content = json.loads(text)
        if content.get("format") != _FORMAT:
            return None
        fields = {field.name: content[field.name] for field in dataclasses.fields(Holder)}
        return Holder(**fields | {"process": int(fields["process"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def given_back(directory: str) -> str:
    """Say why this process writes no more to `directory`."""
    return f"--model-dir={directory}: this process has ended its lease and writes nothing there now"


def place() -> str:
    """Return the boot and the process namespace of this process; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # Containers on one machine share the boot but not the numbers of processes.
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def began(process: int) -> str | None:
    """Return when a process began, in ticks since the boot; None if none lives (or a zombie)."""
    try:
        text = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # proc(5): the name, which may hold anything, is in parentheses; state is field 3, start 22.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
