"""Charts as SVG text for a page, drawn by matplotlib."""

import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

Points = Mapping[int, float]

_SIZE_INCHES, _SQUARE_INCHES = (5.6, 2.6), (5.6, 5.2)
# The names and counts of more classes would not be readable.
_MOST_NAMED = 20
# Any: older versions of matplotlib have no type for it.
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    # Okabe and Ito's colours, which colour-blind people can tell apart.
    "axes.prop_cycle": "cycler(color=['#0072b2', '#d55e00', '#009e73', '#cc79a7'])",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "lines.linewidth": 2,
    # Text stays text, which can be selected and searched.
    "svg.fonttype": "none",
    # The same course gives the same page: no random names, no date, no version.
    "svg.hashsalt": "report",
}
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
# More layers of points than pixels say nothing.
_MOST_POINTS = 600


def line_chart(title: str, lines: Mapping[str, Points]) -> str:
    """Return values over steps, a line for each of `lines`; "" where none has a point."""
    drawn = {name: points for name, points in lines.items() if points}

    def draw(axes: Any) -> None:
        for name, points in drawn.items():
            # A line through one point would not be seen.
            marker = "o" if len(points) == 1 else ""
            axes.plot(list(points), list(points.values()), marker=marker, label=name)
        axes.set_ylim(bottom=min(0.0, axes.dataLim.ymin))
        _label_steps(axes, legend=len(drawn) > 1)

    return _figure(title, draw) if drawn else ""


def stacked_chart(title: str, layers: Mapping[str, Points]) -> str:
    """Return layers upon each other over steps; every layer has the same steps."""
    layers = {name: points for name, points in layers.items() if points}
    steps = list(next(iter(layers.values()), ()))
    steps = steps[:: 1 + len(steps) // _MOST_POINTS]

    def draw(axes: Any) -> None:
        values = [[points.get(step, 0.0) for step in steps] for points in layers.values()]
        axes.stackplot(steps, values, labels=list(layers), alpha=0.85)
        # One slow loop must not flatten all others.
        sums = sorted(map(sum, zip(*values, strict=True)))
        axes.set_ylim(0.0, 1.1 * sums[int(0.98 * (len(sums) - 1))] or 1.0)
        _label_steps(axes, legend=True)

    return _figure(title, draw) if layers else ""


def share_chart(title: str, shares: Mapping[str, float]) -> str:
    """Return a bar for the seconds of each part, with its share of the whole."""
    whole = sum(shares.values())

    def draw(axes: Any) -> None:
        bars = axes.barh(list(shares), list(shares.values()))
        axes.bar_label(bars, [f"{s:.1f} s ({s / whole:.0%})" for s in shares.values()], padding=4)
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.margins(x=0.25)

    return _figure(title, draw) if whole else ""


def confusion_chart(title: str, names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Return a square of counts, a row for each true class; shades are shares of the row."""
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]

    def draw(axes: Any) -> None:
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axes.grid(False)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        if len(names) <= _MOST_NAMED:
            axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
            axes.set_yticks(range(len(names)), names)
            for row, line in enumerate(counts):
                for column, count in enumerate(line):
                    ink = "white" if shares[row][column] > 0.5 else "black"
                    text = str(count) if count else ""
                    axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)

    return _figure(title, draw, _SQUARE_INCHES) if counts else ""


def _label_steps(axes: Any, legend: bool) -> None:
    axes.set_xlabel("step")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1, nbins=6)
    if legend:
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)


def _figure(
    title: str, draw: Callable[[Any], None], size: tuple[float, float] = _SIZE_INCHES
) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata=_METADATA)
    svg = content.getvalue()
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg[svg.index('<svg') :]}</figure>"
