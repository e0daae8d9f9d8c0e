"""Charts as SVG text, drawn by hand: a machine that trains may have no matplotlib."""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Mapping[int, float]

_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 14, 40
# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_TICKS = 5
# More points than pixels say nothing.
_MOST_POINTS = 600


def line_chart(title: str, lines: Mapping[str, Points], unit: str = "") -> str:
    """Values over steps, a line for each of `lines`; nothing for those without a point."""
    drawn = {name: _thin(points) for name, points in lines.items() if points}
    if not drawn:
        return ""
    xs = [x for points in drawn.values() for x in points]
    ys = [y for points in drawn.values() for y in points.values() if math.isfinite(y)]
    plane = _Plane(min(xs), max(xs), min([*ys, 0.0]), max([*ys, 1e-9]))
    parts = [plane.frame(unit)]
    for colour, points in zip(_cycle(len(drawn)), drawn.values(), strict=True):
        path = " ".join(f"{plane.x(x):.1f},{plane.y(y):.1f}" for x, y in points.items())
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(points) == 1:
            x, y = next(iter(points.items()))
            parts.append(
                f'<circle cx="{plane.x(x):.1f}" cy="{plane.y(y):.1f}" r="3" fill="{colour}"/>'
            )
    return _figure(title, "".join(parts), list(drawn))


def stacked_chart(title: str, layers: Mapping[str, Points], unit: str = "") -> str:
    """Layers upon each other over steps; every layer has the same steps."""
    layers = {name: _thin(points) for name, points in layers.items() if points}
    if not layers:
        return ""
    steps = list(next(iter(layers.values())))
    sums = [sum(points.get(step, 0.0) for points in layers.values()) for step in steps]
    # One slow loop must not flatten all others.
    highest = sorted(sums)[int(0.98 * (len(sums) - 1))] * 1.1 or 1e-9
    plane = _Plane(steps[0], steps[-1], 0.0, highest)
    parts, below = [], [0.0] * len(steps)
    for colour, points in zip(_cycle(len(layers)), layers.values(), strict=True):
        above = [b + points.get(s, 0.0) for b, s in zip(below, steps, strict=True)]
        edge = [*zip(steps, above, strict=True), *reversed(list(zip(steps, below, strict=True)))]
        path = " ".join(f"{plane.x(x):.1f},{plane.y(min(y, highest)):.1f}" for x, y in edge)
        parts.append(f'<polygon points="{path}" fill="{colour}" fill-opacity="0.85"/>')
        below = above
    return _figure(title, "".join(parts) + plane.frame(unit), list(layers))


def share_bar(shares: Mapping[str, float]) -> str:
    """One bar of the whole width, divided by the seconds of each part."""
    whole = sum(shares.values())
    if not whole:
        return ""
    parts, left = [], 0.0
    for colour, (_, seconds) in zip(_cycle(len(shares)), shares.items(), strict=True):
        width = 100.0 * seconds / whole
        parts.append(f'<rect x="{left:.2f}%" width="{width:.2f}%" height="26" fill="{colour}"/>')
        left += width
    names = [f"{name} {seconds:.1f} s ({seconds / whole:.0%})" for name, seconds in shares.items()]
    return f'<svg width="100%" height="26" role="img">{"".join(parts)}</svg>{_legend(names)}'


class _Plane:
    """From values to pixels."""

    def __init__(self, left: float, right: float, low: float, high: float) -> None:
        # A single step stands in the middle.
        self.left, self.right = (left, right) if right > left else (left - 1, left + 1)
        self.low, self.high = low, high if high > low else low + 1

    def x(self, value: float) -> float:
        part = (value - self.left) / (self.right - self.left)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        value = min(max(value if value == value else self.high, self.low), self.high)
        part = (value - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    def frame(self, unit: str) -> str:
        """Axes with round numbers."""
        parts = []
        for value in _round_ticks(self.low, self.high):
            y = self.y(value)
            parts.append(
                f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" class="grid"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}{unit}</text>'
            )
        for value in _round_ticks(self.left, self.right, least=1.0):
            parts.append(
                f'<text x="{self.x(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" '
                f'text-anchor="middle">{value:.6g}</text>'
            )
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>')
        return "".join(parts)


def _round_ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """About five values of 1, 2 or 5 times a power of ten, at least `least` apart."""
    rough = max((high - low) / _TICKS, least)
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / width)
    return [n * width for n in range(first, math.floor(high / width) + 1)]


def _thin(points: Points) -> Points:
    every = -(-len(points) // _MOST_POINTS)
    return dict(list(points.items())[::every])


def _cycle(count: int) -> Sequence[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _figure(title: str, content: str, names: list[str]) -> str:
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{content}</svg>'
    legend = _legend(names) if len(names) > 1 else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}{legend}</figure>"


def _legend(names: Sequence[str]) -> str:
    entries = [
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for colour, name in zip(_cycle(len(names)), names, strict=True)
    ]
    return f'<div class="legend">{"".join(entries)}</div>'
