"""From a ledger to a timeline: every second of the wall time has a state and a cause.

The wall time goes from the first thing that is known, the first start or the TPU that it waited
for, to the last sign of life; a finished job ends with its last start.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tpu_training.goodput.entry import FINISHED, Entry
from tpu_training.goodput.ledger import Ledger
from tpu_training.goodput.tpus import READY, Span, worst_at

# A start that still runs writes once a minute: so short a time after it says nothing.
_TAIL = 180.0
_FIRST, _KILLED = "the first start", "the trainer was killed, or could not write"
# What the TPUs' states mean for a job that waits.
_WAITING = {READY: "idle", "absent": "away"}


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
    """Return the segments in their order, without a gap."""
    entries = _in_turn(ledger.entries)
    if not entries:
        return []
    segments: list[Segment] = []
    cause, now = _FIRST, _first_moment(ledger, entries)
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
        # Parts that sum up to more than the whole are garbage that must not break the sum.
        duration = max(entry.duration, sum(entry.seconds.values()))
        moved.append(replace(entry, begin=begin, duration=duration))
    return moved


def _first_moment(ledger: Ledger, entries: Sequence[Entry]) -> float:
    return min([entries[0].begin, *(span.begin for span in ledger.spans)])


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
    """Return the cause that most of a time without a trainer has; empty if nobody knows one."""
    seconds: dict[str, float] = {}
    for segment in gap:
        if segment.cause:
            spent = segment.end - segment.begin
            seconds[segment.cause] = seconds.get(segment.cause, 0.0) + spent
    return max(seconds, key=lambda cause: seconds[cause], default="")


def _of_start(entry: Entry, kept: int, spans: Sequence[Span], cause: str) -> Iterator[Segment]:
    """Yield what a start did: it waits, loads, compiles, steps, and what it loses comes last."""
    parts, now = entry.seconds, entry.begin
    for segment in _without_trainer(spans, now, now + parts["wait"]):
        yield replace(segment, seconds=_waited(segment), cause=cause)
    now += parts["wait"]
    rest = max(0.0, entry.duration - sum(parts.values()))
    lost = parts["compute"] * _lost_part(entry, kept)
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
    """Let a trainer initialise that waits for a TPU which is there, or of which nobody knows."""
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


def _lost_part(entry: Entry, kept: int) -> float:
    done = entry.last_step - entry.first_step
    return min(1.0, (entry.last_step - kept) / done) if done else 0.0
