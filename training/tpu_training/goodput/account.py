"""Add up a job's ledger: every second of its wall time has one state.

Goodput is the part of the wall time that went into steps whose result was kept, as in Google's
https://github.com/AI-Hypercomputer/ml-goodput-measurement; all else is badput, by its cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from tpu_core.ledger import FINISHED, READY, Entry, Ledger, Span, worst_at

STATES = (
    ("step", "steps that count"),
    ("input", "waiting for input"),
    ("checkpoint", "waiting for checkpoints"),
    ("evaluating", "evaluations"),
    ("between", "between loops: summaries, callbacks"),
    ("lost", "steps after the last checkpoint, done again"),
    ("loading", "loading the framework"),
    ("initialising", "waiting for a TPU that is there, connecting, restoring"),
    ("compiling", "the first step or loop, which compiles"),
    ("queued", "waiting in Google's queue"),
    ("provisioning", "Google creates the TPU"),
    ("recovering", "a lost TPU is noticed, deleted, or can't be made"),
    ("stopped", "the TPU is stopped or deleted by a limit"),
    ("idle", "the TPU is there, and no trainer runs"),
    ("away", "no trainer runs; why is not known"),
)


@dataclass(frozen=True)
class Part:
    """Some of STATES under one name and in one colour, in every picture and page.

    The colour has a contrast of at least 3:1 to the paper of a light page and of a dark one.
    """

    name: str
    colour: str
    states: tuple[str, ...]


PARTS = (
    Part("steps that count", "#0072b2", ("step",)),
    Part("input", "#3a8fc0", ("input",)),
    Part("checkpoints, evaluations", "#009e73", ("checkpoint", "evaluating", "between")),
    Part("starting, compiling", "#968200", ("loading", "initialising", "compiling")),
    Part("lost steps", "#c02a1d", ("lost",)),
    Part("TPU away", "#d96c0a", ("queued", "provisioning", "recovering")),
    Part("stopped", "#b5569a", ("stopped",)),
    Part("idle, unknown", "#7a7a7a", ("idle", "away")),
)
# A start that still runs writes once a minute: so short a time after it says nothing.
_TAIL = 180.0
_FIRST, _KILLED = "the first start", "the trainer was killed, or could not write"
# What the TPUs' states mean for a job that waits.
_WAITING = {READY: "idle", "absent": "away"}


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


@dataclass(frozen=True)
class Segment:
    """A part of the wall time.

    Attributes:
        begin: In seconds since the epoch.
        end: Likewise.
        seconds: What it went into, by state; they sum up to it.
        cause: Why it is not goodput, where something else than its state says so.
    """

    begin: float
    end: float
    seconds: Mapping[str, float]
    cause: str = ""


def timeline(ledger: Ledger) -> list[Segment]:
    """Return the segments in their order, without a gap.

    The wall time goes from the first thing that is known, the first start or the TPU that it waited
    for, to the last sign of life; a finished job ends with its last start.
    """
    entries = _in_turn(ledger.entries)
    if not entries:
        return []
    segments: list[Segment] = []
    cause = _FIRST
    now = min([entries[0].begin, *(span.begin for span in ledger.spans)])
    for entry, kept in zip(entries, kept_steps(entries), strict=True):
        cause = _add_gap(segments, list(_without_trainer(ledger.spans, now, entry.begin)), cause)
        segments += _of_start(entry, kept, ledger.spans, cause)
        cause, now = entry.ending or _KILLED, entry.end
    tail = _without_trainer(ledger.spans, now, _last_moment(ledger, entries[-1]))
    _add_gap(segments, list(tail), cause)
    return segments


def kept_steps(entries: Sequence[Entry]) -> list[int]:
    """Return, for each start, up to which step its work was not done again."""
    kept, least = [], entries[-1].last_step
    for entry in reversed(entries):
        kept.append(min(least, entry.last_step))
        least = min(least, entry.first_step)
    return kept[::-1]


def _add_gap(segments: list[Segment], gap: Sequence[Segment], cause: str) -> str:
    """Add a time without a trainer and return its cause, which also lost the steps before it."""
    cause = _cause(gap) or cause
    if segments and "lost" in segments[-1].seconds:
        segments[-1] = replace(segments[-1], cause=cause)
    segments += [replace(segment, cause=cause) for segment in gap]
    return cause


def _in_turn(entries: Sequence[Entry]) -> list[Entry]:
    """Move each start that would begin before the end of another: their clocks disagree."""
    moved: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: entry.begin):
        begin = max(entry.begin, moved[-1].end) if moved else entry.begin
        # Damaged parts that exceed the whole must not break the sum.
        duration = max(entry.duration, sum(entry.seconds.values()))
        moved.append(replace(entry, begin=begin, duration=duration))
    return moved


def _last_moment(ledger: Ledger, last: Entry) -> float:
    seen = max((span.end for span in ledger.spans), default=last.end)
    return seen if last.ending != FINISHED and seen - last.end > _TAIL else last.end


def _without_trainer(spans: Sequence[Span], begin: float, end: float) -> Iterator[Segment]:
    """Split a time in which no trainer ran by what became of the TPUs."""
    edges = {edge for span in spans for edge in (span.begin, span.end) if begin < edge < end}
    for left, right in pairwise(sorted({begin, end, *edges})):
        worst = worst_at(spans, left)
        state = _WAITING.get(worst.state, worst.state) if worst else "away"
        cause = worst.cause if worst else ""
        if right > left:
            yield Segment(left, right, {state: right - left}, cause)


def _cause(gap: Sequence[Segment]) -> str:
    """Return the cause that most of a time without a trainer has; empty if unknown."""
    seconds: dict[str, float] = {}
    for segment in gap:
        if segment.cause:
            _add(seconds, segment.cause, segment.end - segment.begin)
    return max(seconds, key=lambda cause: seconds[cause], default="")


def _of_start(entry: Entry, kept: int, spans: Sequence[Span], cause: str) -> Iterator[Segment]:
    """Yield what a start did: it waits, loads, compiles, steps, and what it loses comes last."""
    parts, now = entry.seconds, entry.begin
    for segment in _without_trainer(spans, now, now + parts["wait"]):
        yield replace(segment, seconds=_waited(segment), cause=cause)
    now += parts["wait"]
    rest = max(0.0, entry.duration - sum(parts.values()))
    done = entry.last_step - entry.first_step
    lost = parts["compute"] * min(1.0, (entry.last_step - kept) / done) if done else 0.0
    for seconds, why in (
        ({"loading": parts["load"]}, cause),
        ({"initialising": parts["connect"] + parts["restore"] + rest}, cause),
        ({"compiling": parts["start"]}, cause),
        (_mixed(parts, lost), ""),
        ({"lost": lost}, ""),
    ):
        if spent := sum(seconds.values()):
            yield Segment(now, now + spent, seconds, why)
            now += spent


def _waited(segment: Segment) -> dict[str, float]:
    """Return the state of a trainer that waits: initialising, if the TPU is READY or unknown."""
    ((state, seconds),) = segment.seconds.items()
    return {"initialising" if state in _WAITING.values() else state: seconds}


def _mixed(parts: Mapping[str, float], lost: float) -> dict[str, float]:
    return {
        "step": parts["compute"] - lost,
        "input": parts["input"],
        "checkpoint": parts["checkpoint"],
        "evaluating": parts["evaluate"],
        "between": parts["idle"],
    }
