"""Makes text of others inert for terminals: what a bucket, a record or a log has is read, and does
nothing there.

Terminals obey escape sequences, the control characters of C0 and C1, and marks of direction; rich
obeys markup, so that tables take such a text as a `rich.text.Text`.
"""

from __future__ import annotations

import re
import unicodedata

# Taken away whole, colours above all, so that nothing of them is left to read.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_KEPT = "\t\n"


def line(text: str) -> str:
    """Return a text as one line without characters that control a terminal or the direction."""
    return " ".join(printable(text).split())


def plain(text: str) -> str:
    """Return a text with its lines, without colours and what else controls a terminal."""
    return printable(_SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"), _KEPT)


def printable(text: str, kept: str = "\t") -> str:
    """Return a text with a space for each character that controls something, but for those kept."""
    return "".join(each if each in kept or not _controls(each) else " " for each in text)


def _controls(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
