"""Known and unknown errors in a log, and the page of the known ones, in English and Chinese.

A log comes from anywhere: a serial port, journald, a terminal that broke its lines, a piece that
was pasted into a mail. So what loggers put before a message is taken away, broken lines are put
together, and each known error is looked for in both readings. What looks like an error and is not
known is named, too: silence would mean that all is well.
"""

import re
import textwrap
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from tpu_core.causes import CAUSES
from tpu_training.errors import KnownError, innocent_lines, known_errors
from tpustack.console import in_chinese, unbroken

# The Chinese words for "Cause:" and "Fix:".
CAUSE, FIX = "\u539f\u56e0\uff1a", "\u89e3\u51b3\u65b9\u6cd5\uff1a"
_LONGEST_TEXT = 200
_TRACEBACK = "Traceback (most recent call last)"
_LOOKS_LIKE_AN_ERROR = re.compile(
    r"^\s*(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Fault)(?:: |$)|"
    r"^\s*(?:error|fatal|panic|FAILED)\b\s*:|\b(?:ERROR|FATAL|CRITICAL)\b|"
    r"(?:^|\s)[EF](?:\d{4} \d\d:| tensorflow/| external/)|"
    r"Segmentation fault|training failed: |googleapi: Error"
)
# The end of a process: of interest only if nothing says why.
_LOOKS_LIKE_AN_END = re.compile(
    r"core dumped|exit status [1-9]|Failed with result|"
    r"Main process exited, code=(?:exited, status=[1-9]|killed)"
)
# An exception's message may be this many lines below its name.
_BELOW = 12
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Excerpt:
    """A text of a log that looks like an error, known or not.

    Attributes:
        source: the name of the log.
        lines: where it begins, from 1; several where the same was written again.
        text: the first of these lines, without what would control a terminal.
    """

    source: str
    lines: tuple[int, ...]
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {"source": self.source, "lines": list(self.lines), "text": self.text}


@dataclass(frozen=True)
class Finding(Excerpt):
    """A known error in a log, and what the catalogue says of it."""

    known: KnownError

    def as_json(self) -> dict[str, Any]:
        """Return it for programs, with cause and fix, also in the person's language."""
        known = self.known
        about: dict[str, Any] = {"id": known.id, "cause": known.cause, "fix": known.fix}
        about |= {"link": known.link, "translation": None}
        if chinese := translated(known):
            about["translation"] = dict(zip(("cause", "fix"), chinese, strict=True))
        return {**super().as_json(), **about}


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found, in the order of the lines."""

    findings: tuple[Finding, ...]
    unknown: tuple[Excerpt, ...]


def translated(known: KnownError) -> tuple[str, str] | None:
    """Return cause and fix in the person's language; None for English."""
    return known.chinese if in_chinese() else None


def diagnose(source: str, text: str) -> Diagnosis:
    """Find errors in a log; of several explanations of one message the most specific counts."""
    log = Log.of(text)
    explained = _explained(log)
    lines: dict[str, list[int]] = {}
    for record in sorted(explained):
        known, line = explained[record]
        lines.setdefault(known.id, []).append(line)
    # Lines that differ in numbers alone, such as steps and addresses, are one error.
    alike: dict[str, list[int]] = {}
    for line in _suspicious(log, set(explained)):
        alike.setdefault(_DIGITS.sub("0", log.messages[line].strip()), []).append(line)

    def about(found: list[int]) -> tuple[str, tuple[int, ...], str]:
        return source, tuple(line + 1 for line in found), _shown(log, found[0])

    by_id = {known.id: known for known in known_errors()}
    return Diagnosis(
        tuple(Finding(*about(found), by_id[name]) for name, found in lines.items()),
        tuple(Excerpt(*about(found)) for found in alike.values()),
    )


def _explained(log: "Log") -> dict[int, tuple[KnownError, int]]:
    """Return by record the known error, and the line where it begins.

    The catalogue has specific errors before general ones, and the first that matches a record wins.
    """
    innocent = innocent_lines()
    messages = tuple("" if innocent.search(line) else line for line in log.messages)
    found: dict[int, tuple[KnownError, int]] = {}
    # As written first: to mend also joins lines that are long and whole.
    texts = [Joined(messages, log.lines, mend=mend) for mend in (False, True)]
    for known in known_errors():
        for joined in texts:
            for match in known.pattern.finditer(joined.text):
                line = joined.line(match.start())
                record = log.records[line]
                last = log.records[joined.line(match.end() - 1)]
                if not {record, last} & found.keys():
                    found[record] = (known, line)
    return found


def _suspicious(log: "Log", explained: set[int]) -> Iterator[int]:
    """Yield the lines (from 0) that look like errors, outside the records that are explained."""
    innocent = innocent_lines()
    ends: list[int] = []
    silent = not explained
    traceback: int | None = None
    for index, (line, message) in enumerate(zip(log.lines, log.messages, strict=True)):
        if _TRACEBACK in message:
            traceback = index
            continue
        if traceback == index - 1 and message.startswith('File "'):
            # Copied from a page that lost the indentation: only its name tells the exception.
            traceback = None
        is_exception = traceback is not None and bool(message) and not message[0].isspace()
        if is_exception:
            traceback = None
            if explained.intersection(range(index + 1, index + 1 + _BELOW)):
                continue
        if log.records[index] in explained or innocent.search(line):
            continue
        if is_exception or any(map(_LOOKS_LIKE_AN_ERROR.search, (line, message))):
            silent = False
            yield index
        elif _LOOKS_LIKE_AN_END.search(line):
            ends.append(index)
    if traceback is not None:
        # The log ends within the traceback.
        silent = False
        yield traceback
    if silent:
        yield from ends


def _shown(log: "Log", line: int) -> str:
    text = "".join(c if c.isprintable() else " " for c in log.messages[line]).strip()
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


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
    def of(cls, text: str) -> "Log":
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
            continues = False
            if index > 0 and message.strip() and message == self.lines[index]:
                before = len(self.lines[index - 1])
                room = _COLUMNS - before - 1
                continues = before >= _BROKEN or len(message.split(None, 1)[0]) > room
            found.append(found[-1] if continues else index)
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


_PAGE = """\
# Errors and fixes

<!-- Made by `make docs` from known_errors.json and tpu_core.causes; a test keeps it current. -->

Each heading is what you see in a log or on the terminal. Search this page for a few words of your
message, or let `tpustack doctor FILE` search your log. It finds these errors even if the lines are
broken, have a logger's prefix, or are only a part of the message; `-` reads standard input. Without
a file, it reads the stack's own logs and states: the TPU, the VM and the VM's serial port.

```console
$ echo "constraints/compute.requireOsLogin violated" | tpustack doctor -
<stdin>:1: policy-os-login: constraints/compute.requireOsLogin violated
  cause: an organization policy requires OS Login, and the stack disables it
  fix:   set vm.osLogin to true (the default)
  see:   https://cloud.google.com/compute/docs/oslogin/manage-oslogin-in-an-org
```

The [exit codes](commands.md#tpustack-doctor) are 0 if it finds nothing, 1 if it finds an error,
known or not, and 2 for wrong arguments. The trainer and `pulumi up` print the same fixes.

With `TPUSTACK_LANG=zh`, or in a Chinese locale, `tpustack doctor` and `pulumi up` print the fix in
Chinese, followed by the English text. Every other language gives English.
"""
_RECREATING = """\
## While the agent recreates a TPU {#recreating}

The agent names why Google doesn't provide the TPU, with Google's own words in parentheses.

| in its log | meaning | fix | tries again |
|---|---|---|---|
"""


def errors_page() -> str:
    """Return the page docs/errors.md."""
    causes = (
        f"| `{name}` | {meaning} | {cure or 'wait'} | {'yes' if passes else 'no'} |\n"
        for name, (meaning, cure, passes) in CAUSES.items()
    )
    return "\n".join([_PAGE, *map(_section, known_errors()), _RECREATING + "".join(causes)])


def _section(known: KnownError) -> str:
    cause, fix = known.chinese
    return (
        f"## `{known.symptom}` {{#{known.id}}}\n\n```text\n{_fitting(known.example)}\n```\n\n"
        f"**Cause:** {_sentence(known.cause)}.\n\n**Fix:** {_sentence(known.fix)}.\n\n"
        f"See <{known.link}>.\n\n"
        '<div lang="zh" markdown>\n\n'
        f"**{CAUSE[:-1]}**{CAUSE[-1]}{cause}\u3002\n\n**{FIX[:-1]}**{FIX[-1]}{fix}\u3002\n\n</div>\n"
    )


def _fitting(text: str) -> str:
    """Return a message in lines that fit the page, broken between words as a terminal does."""
    lines = (
        textwrap.wrap(line, _COLUMNS - 2, break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(part for line in lines for part in line)


def _sentence(text: str) -> str:
    # What begins with a command or a flag keeps its case.
    return text if text[:1] in "`-" else text[:1].upper() + text[1:]
