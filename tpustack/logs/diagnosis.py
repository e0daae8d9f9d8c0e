"""Known and unknown errors in a log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpu_training.errors.catalog import KnownError, innocent_lines, known_errors
from tpustack.logs.text import Joined, Log

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
class Finding:
    """A known error in a log, and the lines (from 1) where it begins."""

    source: str
    known: KnownError
    lines: tuple[int, ...]
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "source": self.source,
            "id": self.known.id,
            "lines": list(self.lines),
            "text": self.text,
            "cause": self.known.cause,
            "cure": self.known.cure,
            "link": self.known.link,
        }


@dataclass(frozen=True)
class Unknown:
    """A text that looks like an error and is not in the catalogue."""

    source: str
    lines: tuple[int, ...]
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {"source": self.source, "lines": list(self.lines), "text": self.text}


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found, in the order of the lines."""

    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]


def diagnose(source: str, text: str) -> Diagnosis:
    """Find errors in a log; of several explanations of one message the most specific counts."""
    log = Log.of(text)
    explained = _explained(log)
    lines: dict[str, list[int]] = {}
    for record in sorted(explained):
        known, line = explained[record]
        lines.setdefault(known.id, []).append(line)
    by_id = {known.id: known for known in known_errors()}
    findings = tuple(
        Finding(source, by_id[id_], tuple(line + 1 for line in found), _shown(log, found[0]))
        for id_, found in lines.items()
    )
    alike: dict[str, list[int]] = {}
    for line in _suspicious(log, set(explained)):
        alike.setdefault(_DIGITS.sub("0", log.messages[line].strip()), []).append(line)
    unknown = tuple(
        Unknown(source, tuple(line + 1 for line in found), _shown(log, found[0]))
        for found in alike.values()
    )
    return Diagnosis(findings, unknown)


def _explained(log: Log) -> dict[int, tuple[KnownError, int]]:
    """Return by record the known error, and the line where it begins."""
    innocent = innocent_lines()
    messages = tuple("" if innocent.search(line) else line for line in log.messages)
    found: dict[int, tuple[KnownError, int]] = {}
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


def _suspicious(log: Log, explained: set[int]) -> Iterator[int]:
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


def _shown(log: Log, line: int) -> str:
    text = "".join(c if c.isprintable() else " " for c in log.messages[line]).strip()
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
