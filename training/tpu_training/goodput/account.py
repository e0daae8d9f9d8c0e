"""Add up a job's ledger: every second of its wall time has one state.

Goodput is the part of the wall time that went into steps whose result was kept, as in Google's
https://github.com/AI-Hypercomputer/ml-goodput-measurement; all else is badput, by its cause.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from tpu_training.errors import InputError, require
from tpu_training.goodput.ledger import FINISHED, READY, Entry, Ledger, Span, worst_at

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
    ("provisioning", "Google creates the TPU"),
    ("recovering", "a lost TPU is noticed, deleted, or can't be made"),
    ("stopped", "the TPU is stopped or deleted by a limit"),
    ("idle", "the TPU is there, and no trainer runs"),
    ("away", "no trainer runs; why is not known"),
)
# A start that still runs writes once a minute: so short a time after it says nothing.
_TAIL = 180.0
_FIRST, _KILLED = "the first start", "the trainer was killed, or could not write"
# What the TPUs' states mean for a job that waits.
_WAITING = {READY: "idle", "absent": "away"}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# (labels, value)
Sample = tuple[Mapping[str, str], float]


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
        # Damaged parts that exceed the whole must not break the sum.
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
    """Return the cause that most of a time without a trainer has; empty if unknown."""
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


def _lost_part(entry: Entry, kept: int) -> float:
    done = entry.last_step - entry.first_step
    return min(1.0, (entry.last_step - kept) / done) if done else 0.0


def to_prometheus(total: Account, job: str) -> str:
    """Return the metrics of `job` as text for the node exporter's textfile collector, say.

    https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    own = {"job_name": job}
    states = (({**own, "state": state}, value) for state, value in total.seconds.items())
    causes = (({**own, "cause": cause}, value) for cause, value in total.causes.items())
    tpus = (
        ({**own, "tpu": tpu, "state": state}, value)
        for tpu, seconds in total.tpus.items()
        for state, value in seconds.items()
    )
    parts = (
        _metric("goodput_ratio", "Part of the wall time in steps that count.", own, total.goodput),
        _metric("wall_seconds", "Wall time of the job.", own, total.wall),
        _metric("steps", "Steps that count.", own, total.steps),
        _metric("lost_steps", "Steps that were done again.", own, total.lost_steps),
        _metric("starts", "Starts of the trainer.", own, total.starts),
        _metrics("state_seconds", "Wall time by state.", states),
        _metrics("badput_seconds", "Wall time that is not goodput, by its cause.", causes),
        _metrics("tpu_state_seconds", "Time of each TPU by its state.", tpus),
    )
    return "".join(parts)


def _metric(name: str, meaning: str, labels: Mapping[str, str], value: float) -> str:
    return _metrics(name, meaning, [(labels, value)])


def _metrics(name: str, meaning: str, samples: Iterable[Sample]) -> str:
    # Gauges: a finished count may shrink when a later start goes back behind it.
    full = f"tpu_training_{name}"
    lines = [f"# HELP {full} {meaning}", f"# TYPE {full} gauge"]
    lines += [f"{full}{{{_labels(labels)}}} {value!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())


# The picture of where a job's time went: the states over time, each TPU, the causes of badput.

# From green, what counts, to red, what is lost, and grey, what is unknown. Neighbours differ in
# lightness, too, for those who can't tell colours apart.
_COLOURS = {
    "step": "#1b7837",
    "input": "#a6dba0",
    "checkpoint": "#5aae61",
    "evaluating": "#c7e9f1",
    "between": "#d9f0d3",
    "lost": "#b2182b",
    "loading": "#fee391",
    "initialising": "#fec44f",
    "compiling": "#ec7014",
    "queued": "#c2a5cf",
    "provisioning": "#9970ab",
    "recovering": "#5e3c7d",
    "stopped": "#4d4d4d",
    "idle": "#8c510a",
    "away": "#bdbdbd",
}
_TPU_COLOURS = {**_COLOURS, READY: "#92c5de", "absent": "#f0f0f0"}
_WIDTH, _DOTS_PER_INCH = 10.0, 110
# More columns than this are narrower than a dot.
_COLUMNS = 700
_MOST_CAUSES, _LONGEST_CAUSE = 8, 80
_UNITS = ((172800.0, 86400.0, "days"), (7200.0, 3600.0, "hours"), (0.0, 60.0, "minutes"))
# Text stays text, and the same ledger gives the same picture.
_STYLE: Any = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "goodput"}
_METADATA: Mapping[str, Any] = {
    "png": {"Software": None},
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
}
KINDS = tuple(_METADATA)


def draw(ledger: Ledger, total: Account, kind: str, marks: Sequence[float] = ()) -> bytes:
    """Return a picture of one of KINDS.

    Args:
        ledger: Of a job.
        total: What it sums up to.
        kind: One of KINDS.
        marks: When something happened from outside, in seconds since the epoch.

    Raises:
        InputError: matplotlib is not installed, or no time has passed yet.
    """
    require("matplotlib", "matplotlib", "plots", "drawing the picture")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    segments, causes = timeline(ledger), _named(total.causes)
    if not segments:
        raise InputError("no time has passed yet that could be drawn")
    heights = [2.6, 0.35 * len(total.tpus), 0.4 + 0.24 * len(causes)]
    with rc_context(_STYLE):
        size = (_WIDTH, 1.6 + sum(heights))
        figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
        shown = [height for height in heights if height]
        rows = list(figure.subplots(len(shown), height_ratios=shown, squeeze=False)[:, 0])
        _draw_states(rows[0], segments, total)
        _draw_marks(rows[0], segments, marks)
        if total.tpus:
            _draw_tpus(rows[1], ledger, segments)
        _draw_causes(rows[-1], causes, total.wall)
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata=_METADATA[kind])
    return content.getvalue()


def _draw_states(axes: Any, segments: Sequence[Segment], total: Account) -> None:
    begin, end = segments[0].begin, segments[-1].end
    divisor, unit = _unit(end - begin)
    edges, shares = _columns(segments)
    times = [(edge - begin) / divisor for edge in edges]
    present = [state for state, _ in STATES if total.seconds[state]]
    bottom = [0.0] * len(shares)
    for state in present:
        heights = [column.get(state, 0.0) for column in shares]
        top = [low + height for low, height in zip(bottom, heights, strict=True)]
        style = {"color": _COLOURS[state], "linewidth": 0, "label": state}
        axes.stairs(top, times, baseline=bottom, fill=True, **style)
        bottom = top
    axes.set_title(
        f"goodput {total.goodput:.1%} of {(end - begin) / divisor:.1f} {unit}: "
        f"{total.steps:,} steps in {total.starts} starts, {total.lost_steps:,} lost",
        loc="left",
        fontweight="bold",
        pad=12 + 12 * math.ceil(len(present) / 6),
    )
    axes.set(xlim=(0, times[-1]), ylim=(0, 1), ylabel="part of the time", xlabel=unit)
    axes.legend(ncols=6, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8)


def _draw_marks(axes: Any, segments: Sequence[Segment], marks: Sequence[float]) -> None:
    begin, end = segments[0].begin, segments[-1].end
    divisor, _ = _unit(end - begin)
    times = [(mark - begin) / divisor for mark in marks if begin <= mark <= end]
    axes.vlines(times, 0, 1, color="black", linewidth=0.8, linestyle="dashed")


def _columns(segments: Sequence[Segment]) -> tuple[list[float], list[dict[str, float]]]:
    """Return the edges of equal columns of time, and the share of each state in each."""
    begin, end = segments[0].begin, segments[-1].end
    width = (end - begin) / _COLUMNS or 1.0
    edges = [begin + width * column for column in range(_COLUMNS + 1)]
    shares: list[dict[str, float]] = [{} for _ in range(_COLUMNS)]
    for segment in segments:
        first = int((segment.begin - begin) / width)
        last = min(_COLUMNS - 1, int((segment.end - begin) / width))
        for column in range(first, last + 1):
            left, right = max(segment.begin, edges[column]), min(segment.end, edges[column + 1])
            _add_share(shares[column], segment, max(0.0, right - left) / width)
    return edges, shares


def _add_share(column: dict[str, float], segment: Segment, share: float) -> None:
    whole = segment.end - segment.begin
    for state, seconds in segment.seconds.items():
        if whole:
            column[state] = column.get(state, 0.0) + share * seconds / whole


def _draw_tpus(axes: Any, ledger: Ledger, segments: Sequence[Segment]) -> None:
    begin, end = segments[0].begin, segments[-1].end
    divisor, unit = _unit(end - begin)
    names = sorted({span.tpu for span in ledger.spans})
    for span in ledger.spans:
        piece = ((span.begin - begin) / divisor, (span.end - span.begin) / divisor)
        lane = (names.index(span.tpu) - 0.35, 0.7)
        axes.broken_barh([piece], lane, color=_TPU_COLOURS[span.state], linewidth=0)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(0, (end - begin) / divisor), ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel(f"{unit}; light blue: the TPU is READY, other colours as above")


def _draw_causes(axes: Any, causes: Mapping[str, float], wall: float) -> None:
    bars = axes.barh(range(len(causes)), list(causes.values()), color="#5e3c7d", height=0.6)
    labels = [f"{seconds / wall:.2%}  {cause}" for cause, seconds in causes.items()]
    axes.bar_label(bars, labels, padding=4)
    axes.invert_yaxis()
    axes.set_title("badput by cause, part of the wall time", loc="left")
    axes.set(xticks=[], yticks=[], xlim=(0, 2 * max(causes.values(), default=1.0)))
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)


def _named(causes: Mapping[str, float]) -> dict[str, float]:
    """Return the longest causes, cut to what can be read, and the sum of all others."""
    # Two that are cut to the same words are one bar.
    named: dict[str, float] = {}
    for number, (cause, seconds) in enumerate(causes.items()):
        short = cause if len(cause) <= _LONGEST_CAUSE else f"{cause[:_LONGEST_CAUSE]}…"
        name = short if number < _MOST_CAUSES else "all others"
        named[name] = named.get(name, 0.0) + seconds
    return named


def _unit(seconds: float) -> tuple[float, str]:
    """Return the seconds and the name of a unit that suits a time."""
    return next((size, name) for least, size, name in _UNITS if seconds >= least)
