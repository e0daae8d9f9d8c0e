"""What the agent remembers of its trainer on the machine's disk, for the agent after it."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

_DAY = 86400.0


@dataclass
class Record:
    """The starts of one trainer since the machine's last boot.

    Attributes:
        number: of the last start.
        handled: of the last start whose end has been dealt with.
        over: whether nothing is started any more.
        waiting: whether the trainer waits for its TPU.
        not_before: when the next start may be, in seconds since the epoch.
        fruitless: starts in a row without a finished step.
        cause, in_a_row: how the last failure was called, and how often in a row.
        step: which step the trainer had done then; -1 for none.
        renew: why the TPU has to be made anew before the next start; empty if it need not.
        hung: the last start that was ended because it hung.
        oom_kills: what the kernel had killed for want of memory before the last start.
        events: the failures and preemptions of the last day: when, and which.
    """

    number: int = 0
    handled: int = 0
    over: bool = False
    waiting: bool = False
    not_before: float = 0.0
    fruitless: int = 0
    cause: str = ""
    in_a_row: int = 0
    step: int = -1
    renew: str = ""
    hung: int = 0
    oom_kills: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)

    def today(self, kind: str, now: float) -> int:
        """Return how many events of a kind the last day has seen."""
        return sum(what == kind and now - _DAY < at <= now for at, what in self.events)

    def add(self, kind: str, now: float) -> None:
        """Add an event, and forget those of other days."""
        kept = [event for event in self.events if event[0] > now - _DAY]
        self.events = [*kept, (now, kind)]


def read_record(path: Path) -> Record:
    """Return what was saved; a new record if that is nothing or garbage."""
    try:
        return Record(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return Record()


def save_record(path: Path, record: Record) -> None:
    """Save it as a whole. Raises OSError."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(dataclasses.asdict(record)), "utf-8")
    os.replace(unfinished, path)
