"""The commands of a page, in order and word for word."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# An indented block, as pages have their commands; what is only shown stands between fences.
_BLOCK = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n|\n(?= {4}))+")


def commands(page: str, heading: str = "") -> str:
    """The blocks of a page, or of one section of it, as a script."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = _BLOCK.findall(text)
    assert blocks, f"{page} has no commands under {heading!r}"
    return "".join(re.sub(r"^ {4}", "", block, flags=re.M) for block in blocks)
