"""Text of a log without what terminals and loggers put around the messages."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tpustack.console import unbroken

# A line at least this long may have been broken by a terminal, in the middle of a word.
_BROKEN = 60
# Where most terminals and mail programs break.
_COLUMNS = 80

_DATE = r"(?:\d{4}-\d\d-\d\d[T ]|[A-Z][a-z]{2} +\d{1,2} )\d\d:\d\d:\d\d\S*"
# The prefixes that loggers write before a message: the kernel's and a worker's brackets, a date,
# journald's host and unit, absl's and TensorFlow's source line, Python's level and logger, the
# start-up script.
_PREFIX = re.compile(
    r"\[ *\d+\.\d+\] |\[[a-z]+ \d+\] |"
    rf"{_DATE} (?:[\w.-]+ (?=[\w.@-]+(?:\[\d+\])?: ))?|"
    r"[\w.@-]+\[\d+\]: |[A-Za-z][\w.@-]*: (?=[IWEF]\d{4} )|"
    r"[IWEF]\d{4} \d\d:\d\d:\d\S*(?: +\d+)? [\w./+-]+:\d+\] |[IWEF] [\w./+-]+:\d+\] |"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:|startup-script: "
)


@dataclass(frozen=True)
class Log:
    """A log's lines.

    Attributes:
        lines: without colours.
        messages: the lines without what loggers put before the message.
    """

    lines: tuple[str, ...]
    messages: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Log:
        """Split a text into lines as editors count them."""
        lines = tuple(unbroken(line) for line in text.split("\n"))
        return cls(lines, tuple(_without_prefixes(line) for line in lines))

    @cached_property
    def records(self) -> tuple[int, ...]:
        """Return for each line the first line of its record, as far as one can tell.

        A line continues the one before if it has no prefix of its own, and that one was long enough
        to be broken or had no room for this one's first word.
        """
        found: list[int] = []
        for index, message in enumerate(self.messages):
            goes_on = False
            if index > 0 and message.strip() and message == self.lines[index]:
                before = len(self.lines[index - 1])
                room = _COLUMNS - before - 1
                goes_on = before >= _BROKEN or len(message.split(None, 1)[0]) > room
            found.append(found[-1] if goes_on else index)
        return tuple(found)


class Joined:
    """A log's messages as one text, whose positions can be traced back to lines.

    Args:
        messages: the lines.
        lines: the same with all that was before the messages; their length counts.
        mend: put together what may have been broken in the middle of a word.
    """

    def __init__(self, messages: tuple[str, ...], lines: tuple[str, ...], *, mend: bool) -> None:
        pieces = [
            message if mend and len(line) >= _BROKEN else f"{message}\n"
            for message, line in zip(messages, lines, strict=True)
        ]
        self.text = "".join(pieces)
        self._ends = list(accumulate(len(piece) for piece in pieces))

    def line(self, position: int) -> int:
        """Return the index of the line that holds the character at `position`."""
        return bisect_right(self._ends, position)


def _without_prefixes(line: str) -> str:
    position = 0
    while found := _PREFIX.match(line, position):
        position = found.end()
    return line[position:]
