"""The pages of the documentation, as tests read them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from docs_site import pages

REPOSITORY = Path(__file__).parents[3]
PAGES = pages()
READMES = ("README.md", "README.zh-CN.md")
_FENCE = re.compile(r"^( *)(`{3,})([^`\n]*)\n(.*?)^\1\2 *$", re.M | re.S)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n|\n(?= {4}))+")


def text(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def fenced(page: str) -> list[tuple[str, str]]:
    """The language and text of each fenced block."""
    return [(block[3], _dedent(block[4], len(block[1]))) for block in _FENCE.finditer(text(page))]


def code_blocks(page: str) -> list[str]:
    """Fenced and indented blocks, in their order, without their indentation."""
    content = text(page)
    found = [
        (block.start(), _dedent(block[4], len(block[1]))) for block in _FENCE.finditer(content)
    ]
    plain = _FENCE.sub(lambda block: re.sub(r"[^\n]", "~", block[0]), content)
    found += [(block.start(), _dedent(block[0], 4)) for block in _INDENTED.finditer(plain)]
    return [block for _, block in sorted(found)]


def prose(page: str) -> str:
    """The page without its blocks of code."""
    return _INDENTED.sub("", _FENCE.sub("", text(page)))


def headings(page: str) -> list[tuple[int, str]]:
    """The level and text of each heading."""
    return [
        (len(marks), title) for marks, title in re.findall(r"^(#+) (.+?)\s*$", prose(page), re.M)
    ]


def _dedent(block: str, spaces: int) -> str:
    return re.sub(rf"^ {{{spaces}}}", "", block, flags=re.M)
