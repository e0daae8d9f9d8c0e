"""Add up a job's ledger: every second of its wall time has one state.

Goodput is the part of the wall time that went into steps whose result was kept, as in Google's
https://github.com/AI-Hypercomputer/ml-goodput-measurement; all else is badput, by its cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tpu_training.goodput.ledger import Ledger
from tpu_training.goodput.timeline import Segment, kept_steps, timeline

STATES = (
    ("step", "steps that count"),
    ("input", "waiting for input"),
    ("checkpoint", "waiting for checkpoints"),
    ("evaluating", "evaluations"),
    ("between", "between loops: summaries, callbacks"),
    ("lost", "steps after the last checkpoint, done again"),
    ("loading", "loading TensorFlow"),
    ("initialising", "waiting for a TPU that is there, connecting, restoring"),
    ("compiling", "the first loop, which compiles"),
    ("queued", "waiting in Google's queue"),
    ("provisioning", "Google makes the TPU"),
    ("recovering", "a lost TPU is noticed, deleted, or can't be made"),
    ("stopped", "the TPU is stopped or deleted by a limit"),
    ("idle", "the TPU is there, and no trainer runs"),
    ("away", "no trainer runs, and nobody wrote why"),
)


@dataclass(frozen=True)
class Account:
    """Seconds by state, and what they led to.

    Attributes:
        seconds: Of the wall time, by state.
        causes: Seconds of badput by its cause: what took the trainer away, else the state.
        tpus: Seconds by TPU and its state, as the agent saw it.
        machines: Seconds in which a trainer ran, by machine.
        starts: How often the job was started.
        steps: How many steps count.
        lost_steps: How many were done again.
    """

    seconds: Mapping[str, float]
    causes: Mapping[str, float]
    tpus: Mapping[str, Mapping[str, float]]
    machines: Mapping[str, float]
    starts: int
    steps: int
    lost_steps: int

    @property
    def wall(self) -> float:
        """All seconds from the first thing that is known to the last sign of life."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The part of the wall time in steps that count; 0 before the first one."""
        return self.seconds["step"] / self.wall if self.wall else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return all of it for JSON."""
        return {"wall_seconds": self.wall, "goodput": self.goodput, **asdict(self)}


def account(ledger: Ledger) -> Account:
    """Add up a job's ledger."""
    segments, entries = timeline(ledger), ledger.entries
    tpus: dict[str, dict[str, float]] = {}
    for span in ledger.spans:
        _add(tpus.setdefault(span.tpu, {}), span.state, span.end - span.begin)
    machines: dict[str, float] = {}
    for entry in entries:
        _add(machines, entry.machine, entry.duration)
    done = sum(entry.last_step - entry.first_step for entry in entries)
    kept = _kept(ledger) if entries else 0
    return Account(
        seconds=_by_state(segments),
        causes=_by_cause(segments),
        tpus=tpus,
        machines=machines,
        starts=len(entries),
        steps=kept,
        lost_steps=done - kept,
    )


def _kept(ledger: Ledger) -> int:
    entries = ledger.entries
    pairs = zip(entries, kept_steps(entries), strict=True)
    return sum(max(0, kept - entry.first_step) for entry, kept in pairs)


def _by_state(segments: Sequence[Segment]) -> dict[str, float]:
    total = {name: 0.0 for name, _ in STATES}
    for segment in segments:
        for state, seconds in segment.seconds.items():
            total[state] += seconds
    return total


def _by_cause(segments: Sequence[Segment]) -> dict[str, float]:
    """Return what is not goodput, the longest first."""
    total: dict[str, float] = {}
    for segment in segments:
        for state, seconds in segment.seconds.items():
            if state != "step" and seconds:
                _add(total, segment.cause or state, seconds)
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _add(total: dict[str, float], name: str, seconds: float) -> None:
    total[name] = total.get(name, 0.0) + seconds
