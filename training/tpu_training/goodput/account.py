"""Add up a job's ledger: every second of its wall time has one state.

Goodput is the part of the wall time that went into steps whose result was kept, as in Google's
https://github.com/AI-Hypercomputer/ml-goodput-measurement; all else is badput, by its cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from tpu_training.goodput.entry import Entry

STATES = (
    ("step", "steps that count"),
    ("input", "waiting for input"),
    ("checkpoint", "waiting for checkpoints"),
    ("between", "between loops: evaluation, summaries"),
    ("lost", "steps after the last checkpoint, done again"),
    ("loading", "loading TensorFlow"),
    ("initialising", "waiting for the TPU, connecting, restoring"),
    ("compiling", "the first loop, which compiles"),
    ("away", "no trainer ran: preempted, provisioning, restarting"),
)


@dataclass
class Account:
    """Seconds by state, and what they led to."""

    seconds: dict[str, float] = field(default_factory=lambda: {name: 0.0 for name, _ in STATES})
    starts: int = 0
    steps: int = 0
    lost_steps: int = 0

    @property
    def wall(self) -> float:
        """All seconds from the first start to the last sign of life."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The part of the wall time in steps that count; 0 before the first one."""
        return self.seconds["step"] / self.wall if self.wall else 0.0


def account(entries: Sequence[Entry]) -> Account:
    """Add up the entries of one job."""
    total = Account()
    ordered = sorted(entries, key=lambda entry: entry.begin)
    for entry, following in zip_longest(ordered, ordered[1:]):
        kept = entry.last_step if following is None else following.first_step
        _add(total, entry, max(0, entry.last_step - kept))
        if following is not None:
            # Clocks of two machines may disagree: a start is never before the end of another.
            gap = following.begin - (entry.begin + entry.duration)
            total.seconds["away"] += max(0.0, gap)
    if ordered:
        total.steps = ordered[-1].last_step - ordered[0].first_step
    total.starts = len(ordered)
    return total


def _add(total: Account, entry: Entry, lost_steps: int) -> None:
    parts = entry.seconds
    done = entry.last_step - entry.first_step
    lost = parts["compute"] * min(1.0, lost_steps / done) if done else 0.0
    total.lost_steps += min(lost_steps, done)
    known = {
        "step": parts["compute"] - lost,
        "lost": lost,
        "input": parts["input"],
        "checkpoint": parts["checkpoint"],
        "between": parts["idle"],
        "loading": parts["load"],
        "compiling": parts["start"],
    }
    for state, seconds in known.items():
        total.seconds[state] += seconds
    total.seconds["initialising"] += max(0.0, entry.duration - sum(known.values()))
