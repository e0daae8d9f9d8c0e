"""The pages about training, as tests read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
NAMES = ("own-model", "data", "models", "sizing")


def text(name: str) -> str:
    """A page's text, in which each command is one line."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").replace("\\\n", "")


def section(name: str, title: str) -> str:
    """A page's part under a heading of the second level."""
    _, _, rest = text(name).partition(f"\n## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def programs(name: str) -> dict[str, str]:
    """What a page shows as a file, by the file's name."""
    shown = r"This is\s`(\w+\.py)`(?:(?!```).)*?```python\n(.*?)^```"
    return dict(re.findall(shown, text(name), re.M | re.S))
