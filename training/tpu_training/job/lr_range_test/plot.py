"""Draw a sweep with its three regions as a PNG file."""

import io
import math
from collections.abc import Sequence
from typing import Any

from tpu_training.job.lr_range_test.curve import Point
from tpu_training.job.lr_range_test.verdict import Verdict

_SIZE_INCHES = (9.0, 5.0)
_DOTS_PER_INCH = 120
# Regions in grey, green and red, the line in dark blue. Labels distinguish them in greyscale.
_TOO_LOW, _GOOD, _DIVERGING = "#d9d9d9", "#c7e9c0", "#fcbba1"
_LINE, _RAW, _MARK = "#08306b", "#9ecae1", "#d94801"
_HEADROOM = 1.2
_NARROWEST = 10.0
_MARGIN = 1.1
_LINE_TOP = 0.88
# Room below a loss of 0 for half a mark, as a part of the axis.
_MARK_ROOM = 0.03
# A region that spans less has its name below those of its neighbours.
_NARROW = 1.8
# Multiple of the first loss; anything above only shows that it diverged.
_HIGHEST = 2.0


def draw(points: Sequence[Point], verdict: Verdict, title: str) -> bytes:
    """Return a PNG of the loss over the learning rate on a logarithmic axis."""
    picture = io.BytesIO()
    # Without date and version, the same curve gives the same bytes.
    plot(points, verdict, title).savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def plot(points: Sequence[Point], verdict: Verdict, title: str) -> Any:
    """Return the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    rates = [point.rate for point in points]
    axes.set_xscale("log")
    right = max(rates[-1], rates[0] * _NARROWEST, *verdict.trials)
    axes.set_xlim(min([rates[0], *verdict.trials]), right * _MARGIN)
    top = _highest(points, verdict)
    axes.set_ylim(-_MARK_ROOM * top, top)
    _shade(axes, verdict)
    axes.plot(rates, [p.loss for p in points], color=_RAW, linewidth=1, label="loss of each step")
    smoothed = verdict.smoothed
    axes.plot(rates[: len(smoothed)], smoothed, color=_LINE, linewidth=2, label="smoothed")
    ends = {rate: math.inf if loss is None else loss for rate, loss in verdict.trials.items()}
    for marker, label, above in (
        ("o", "end of each trial", False),
        ("^", "higher, or not finite", True),
    ):
        if drawn := {rate: min(loss, top) for rate, loss in ends.items() if (loss > top) == above}:
            dots = list(drawn), list(drawn.values())
            axes.plot(*dots, marker, color=_MARK, label=label, clip_on=False, zorder=3)
    if verdict.suggestion is not None:
        axes.axvline(verdict.suggestion, 0, _LINE_TOP, color=_MARK, linewidth=1.5, linestyle="--")
        is_right = _across(axes, verdict.suggestion) > 0.5
        axes.annotate(
            f"suggestion {verdict.suggestion:.2g}",
            (verdict.suggestion, _LINE_TOP),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-6 if is_right else 6, -10),
            textcoords="offset points",
            horizontalalignment="right" if is_right else "left",
            color=_MARK,
            fontweight="bold",
        )
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    axes.set_title(title, loc="left")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="best", framealpha=0.9)
    return figure


def _highest(points: Sequence[Point], verdict: Verdict) -> float:
    """Limit the axis by the smoothed curve: one exploding step would flatten everything else."""
    if not verdict.smoothed:
        return 1.0
    high = min(max(verdict.smoothed), _HIGHEST * points[0].loss)
    return high * _HEADROOM


def _across(axes: Any, rate: float) -> float:
    """Return where `rate` is on the axis, from 0 at its left end to 1 at its right one."""
    left, right = axes.get_xlim()
    return math.log(rate / left) / math.log(right / left)


def _shade(axes: Any, verdict: Verdict) -> None:
    end = axes.get_xlim()[1]
    regions = [(axes.get_xlim()[0], verdict.good_from or end, _TOO_LOW, "too low")]
    if verdict.good_from and verdict.good_to:
        regions.append((verdict.good_from, verdict.good_to, _GOOD, "good"))
        if verdict.diverged:
            regions.append((verdict.good_to, end, _DIVERGING, "diverging"))
        else:
            regions[-1] = (verdict.good_from, end, _GOOD, "good")
    for row, (left, right, colour, name) in enumerate(regions):
        if right <= left:
            continue
        axes.axvspan(left, right, color=colour, linewidth=0, zorder=0)
        middle, is_narrow = _across(axes, (left * right) ** 0.5), right < left * _NARROW
        axes.text(
            min(max(middle, 0.06), 0.93),
            0.97 - (0.05 * row if is_narrow else 0.0),
            name,
            transform=axes.transAxes,
            horizontalalignment="center",
            verticalalignment="top",
            fontweight="bold",
            color="#404040",
        )
