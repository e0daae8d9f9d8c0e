"""Makes text of others inert for terminals, which obey escapes, control characters and directions.

Tables obey markup, too, and take such a text as a `rich.text.Text`.
"""

from __future__ import annotations

import re
import unicodedata

# Taken away whole, colours above all, so that nothing of them is left to read.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


def line(text: str) -> str:
    """Return a text as one line without characters that control a terminal or the direction."""
    return " ".join(printable(text).split())


def plain(text: str) -> str:
    """Return a text with its lines, without colours and what else controls a terminal."""
    return printable(_SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"), "\t\n")


def unbroken(text: str) -> str:
    """Return a line of a log or table as `plain` does, still as one line, with its indentation."""
    return plain(text.rstrip("\r")).replace("\n", " ")


def printable(text: str, kept: str = "\t") -> str:
    """Return a text with a space for each character that controls something, but for those kept."""
    return "".join(each if each in kept or not _controls(each) else " " for each in text)


def _controls(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
