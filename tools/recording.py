"""Draw a recorded `make demo` as an animated picture: `python tools/recording.py OUTPUT > SVG`.

OUTPUT is what `script --log-out OUTPUT --command 'make demo'` wrote. Objects are folded into the
first line and a count, waits are shortened, and the progress bar is shown at a few of its steps.
The picture needs no other file; without motion it shows the end.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

COLUMNS, ROWS = 80, 20
_WIDTH, _HEIGHT, _EDGE = 7.8, 18, 16
_SECONDS, _TITLE_SECONDS, _END_SECONDS = 0.16, 0.6, 6.0
_STEPS = 8
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_REWRITE = re.compile(r"\r|\x1b\[2K|\x1b\[1A")
_OBJECT = "storage:BucketObject"
_PROGRESS = tuple(f"training {bar}" for bar in "━╸╺")
_STYLE = """
text{font:13px ui-monospace,"SF Mono","DejaVu Sans Mono",Menlo,monospace}
text{fill:#e6edf3;white-space:pre}
.t{font-weight:700;fill:#9fb4ff}.p{fill:#7ee787}.m{fill:#ffa198}.d{fill:#adb6c0}.b{fill:#f0b35a}
"""


@dataclass(frozen=True)
class Line:
    """A row of the terminal: its text, or the texts that replaced each other there."""

    texts: tuple[str, ...]

    @property
    def style(self) -> str:
        """The class that colours it."""
        kinds = {"●": "t", "  +": "p", "  -": "m", "  …": "d"}
        first = self.texts[0]
        if first.startswith(_PROGRESS):
            return "b"
        return next((style for start, style in kinds.items() if first.startswith(start)), "")


def lines(output: str) -> list[Line]:
    """Return the rows that a session left behind, with runs of one kind folded."""
    shown = [text for text in _rows(output) if text and not text.startswith("Script ")]
    *steps, last = (text for text in shown if text.startswith(_PROGRESS) and "/?" not in text)
    sampled = (*steps[:: max(1, len(steps) // _STEPS)], last)
    # The bar is drawn again below each line; it stays where it was drawn last.
    kept = [text for text in shown if text is last or not text.startswith(_PROGRESS)]
    found = []
    for folds, run in groupby(kept, lambda text: text.startswith(("  + ", "  - "))):
        rows = list(run)
        many = [row for row in rows if folds and _OBJECT in row]
        few = [row for row in rows if row not in many]
        found += [Line(sampled if row is last else (row,)) for row in (*many[:1], *few)]
        if len(many) > 1:
            found.append(Line((f"  … {len(many) - 1} more",)))
    return found


def picture(rows: list[Line]) -> str:
    """Return the session as an SVG."""
    moves, swaps, now = [], [], 0.0
    for count, row in enumerate(rows, 1):
        moves.append((now, count))
        for number, _ in enumerate(row.texts[1:], 1):
            now += _TITLE_SECONDS
            swaps.append((now, number))
        now += _TITLE_SECONDS if row.style == "t" else _SECONDS
    total = now + _END_SECONDS
    scroll = "".join(f"{100 * at / total:.2f}%{{{_moved(count)}}}" for at, count in moves)
    style = [_STYLE, f"@keyframes s{{{scroll}100%{{{_moved(len(rows))}}}}}"]
    style.append(f".s{{{_moved(len(rows))};animation:s {total:.1f}s step-end infinite}}")
    width, height = COLUMNS * _WIDTH + 2 * _EDGE, ROWS * _HEIGHT + 2 * _EDGE
    body = []
    for count, row in enumerate(rows, 1):
        for number, text in enumerate(row.texts):
            name = ""
            if len(row.texts) > 1:
                name = f" f{number}"
                style.append(_frame(number, len(row.texts) - 1, swaps, total))
            body.append(
                f'<text class="{row.style}{name}" x="{_EDGE}" y="{count * _HEIGHT}">'
                f"{escape(_cut(text))}</text>"
            )
    style.append("@media (prefers-reduced-motion:reduce){*{animation:none!important}}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img" aria-label="A recording of make demo">\n'
        f"<style>{''.join(style)}</style>\n"
        f'<rect width="100%" height="100%" rx="10" fill="#161b22"/>\n'
        f'<svg x="0" y="{_EDGE}" width="{width:.0f}" height="{ROWS * _HEIGHT + 4}"><g class="s">\n'
        + "\n".join(body)
        + "\n</g></svg>\n</svg>\n"
    )


def _rows(output: str) -> Iterator[str]:
    for line in output.split("\n"):
        parts = [_ESCAPE.sub("", part) for part in _REWRITE.split(line)]
        yield next((part.rstrip() for part in reversed(parts) if part.strip()), "")


def _cut(text: str) -> str:
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"


def _moved(count: int) -> str:
    """Move the rows so that the one of this number is the last that can be seen."""
    return f"transform:translateY({(ROWS - count) * _HEIGHT}px)"


def _frame(number: int, last: int, swaps: list[tuple[float, int]], total: float) -> str:
    """Show one of the texts of a row from its moment on until the next one's."""
    at = {swap: 100 * seconds / total for seconds, swap in swaps}
    shown = f"0%{{opacity:{int(number == 0)}}}"
    if number:
        shown += f"{at[number]:.2f}%{{opacity:1}}"
    if number < last:
        shown += f"{at[number + 1]:.2f}%{{opacity:0}}"
    end = f"100%{{opacity:{int(number == last)}}}"
    rule = f"animation:f{number} {total:.1f}s step-end infinite"
    return f"@keyframes f{number}{{{shown}{end}}}.f{number}{{opacity:{int(number == last)};{rule}}}"


if __name__ == "__main__":
    print(picture(lines(Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace"))), end="")
