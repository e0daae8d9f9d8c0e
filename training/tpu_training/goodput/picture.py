"""Draw where a job's time went: the states over time, each TPU, the causes of badput."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_training.errors import InputError, require
from tpu_training.goodput.account import STATES, Account, Segment, timeline
from tpu_training.goodput.ledger import READY, Ledger

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
            _add(shares[column], segment, max(0.0, right - left) / width)
    return edges, shares


def _add(column: dict[str, float], segment: Segment, share: float) -> None:
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
