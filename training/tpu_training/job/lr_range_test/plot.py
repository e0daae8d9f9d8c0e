"""Draw a sweep with its three regions as a PNG file."""

import io
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
# Multiple of the first loss; anything above only shows that it diverged.
_HIGHEST = 2.0


def draw(points: Sequence[Point], verdict: Verdict, title: str) -> bytes:
    """Return a PNG of the loss over the learning rate on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    rates = [point.rate for point in points]
    axes.set_xscale("log")
    axes.set_xlim(rates[0], max(rates[-1], rates[0] * _NARROWEST))
    axes.set_ylim(*_limits(points, verdict))
    _shade(axes, rates, verdict)
    axes.plot(rates, [p.loss for p in points], color=_RAW, linewidth=1, label="loss of each step")
    smoothed = verdict.smoothed
    axes.plot(rates[: len(smoothed)], smoothed, color=_LINE, linewidth=2, label="smoothed")
    ends = {rate: loss for rate, loss in verdict.trials.items() if loss is not None}
    if ends:
        axes.plot(list(ends), list(ends.values()), "o", color=_MARK, label="end of each trial")
    if verdict.suggestion is not None:
        axes.axvline(verdict.suggestion, 0, 0.9, color=_MARK, linewidth=1.5, linestyle="--")
        axes.annotate(
            f"suggestion {verdict.suggestion:.2g}",
            (verdict.suggestion, axes.get_ylim()[0]),
            xytext=(6, 10),
            textcoords="offset points",
            color=_MARK,
            fontweight="bold",
        )
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    axes.set_title(title, loc="left")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="best", framealpha=0.9)
    picture = io.BytesIO()
    # Without date and version, the same curve gives the same bytes.
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def _limits(points: Sequence[Point], verdict: Verdict) -> tuple[float, float]:
    """Limit the axis by the smoothed curve: one exploding step would flatten everything else."""
    if not verdict.smoothed:
        return 0.0, 1.0
    high = min(max(verdict.smoothed), _HIGHEST * points[0].loss)
    return 0.0, high * _HEADROOM


def _shade(axes: Any, rates: Sequence[float], verdict: Verdict) -> None:
    regions = [(rates[0], verdict.good_from or rates[-1], _TOO_LOW, "too low")]
    if verdict.good_from and verdict.good_to:
        regions.append((verdict.good_from, verdict.good_to, _GOOD, "good"))
        if verdict.diverged:
            regions.append((verdict.good_to, rates[-1], _DIVERGING, "diverging"))
        else:
            regions[-1] = (verdict.good_from, rates[-1], _GOOD, "good")
    for left, right, colour, name in regions:
        if right <= left:
            continue
        axes.axvspan(left, right, color=colour, linewidth=0, zorder=0)
        axes.text(
            (left * right) ** 0.5,
            0.97,
            name,
            transform=axes.get_xaxis_transform(),
            horizontalalignment="center",
            verticalalignment="top",
            fontweight="bold",
            color="#404040",
        )
