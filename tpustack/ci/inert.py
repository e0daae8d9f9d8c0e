"""Makes text of others inert: in a comment it is read, and does nothing.

The text comes from a request: names of resources, messages of rules, errors. In Markdown it could
end the block that it stands in, mention people, show pictures and links, or give GitLab orders (a
line that begins with `/` is one, even in a fence that is longer than three backticks).
"""

from __future__ import annotations

import re

from tpustack.console import line, printable

# Not seen, and no space to any of the parsers: it only keeps two characters apart.
_APART = "\u200b"
_SPAN = re.compile(r"`([^`]*)`")
_MARKS = re.compile(r"([\\`*_\[\]<>#|~&]|\$(?!\d))")
# What makes a list, a heading or a rule of a line that begins with it.
_BEGINS = re.compile(r"[-+=:]|\d+[.)]")
_FENCE = "```"


def prose(text: str) -> str:
    """Return a text of one line for Markdown, in which only `code` keeps its meaning."""
    kept = line(text)
    parts = [
        code(part) if index % 2 else _plain(part) for index, part in enumerate(_SPAN.split(kept))
    ]
    return "".join([_APART, *parts] if _BEGINS.match(kept) else parts)


def code(text: str) -> str:
    """Return a text of one line as a span of code."""
    kept = line(text)
    longest = max((len(run) for run in re.findall("`+", kept)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if kept.startswith("`") or kept.endswith("`") or not kept else ""
    return f"{fence}{edge}{kept}{edge}{fence}"


def block(text: str, language: str) -> str:
    """Return a text as a block of code in a fence that no line of it can end."""
    lines = (_inside(printable(each)) for each in text.splitlines())
    return "\n".join([f"{_FENCE}{language}", *lines, _FENCE])


def shortened(whole: str, longest: int, cut: str) -> str:
    """Return a Markdown text of at most `longest` characters, with every block ended."""
    if len(whole) <= longest:
        return whole
    kept = whole[: longest - len(cut) - len(_FENCE) - 1].rpartition("\n")[0]
    fences = sum(each.startswith(_FENCE) for each in kept.split("\n"))
    return f"{kept}\n{_FENCE if fences % 2 else ''}{cut}"


def _plain(text: str) -> str:
    # A backslash ends no mention, reference or address.
    apart = re.sub(r"[@#]|//|www\.", lambda found: found[0][0] + _APART + found[0][1:], text)
    return _MARKS.sub(r"\\\1", apart)


def _inside(text: str) -> str:
    return _APART + text if re.match(r"\s*(`|~|/|>|<)", text) else text
