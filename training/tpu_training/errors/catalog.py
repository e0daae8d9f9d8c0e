"""The catalog of error texts of TensorFlow and Google, with causes and cures.

The entries are in known_errors.json; JSON, because a training machine may lack a YAML parser.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Python's words where TensorFlow is not installed.
NO_TENSORFLOW = "No module named 'tensorflow'"

_FILE = Path(__file__).parent / "known_errors.json"


@dataclass(frozen=True)
class KnownError:
    """An error that users meet: how to recognise it, its cause and its cure.

    Attributes:
        example: The text as it was seen.
        partial: A part of it that suffices for recognition.
        wrong_input: Whether it is the user's mistake (exit code 2) rather than a failure (1).
    """

    id: str
    pattern: re.Pattern[str]
    cause: str
    cure: str
    link: str
    example: str
    partial: str
    wrong_input: bool = False


def find_known_error(text: str) -> KnownError | None:
    """Return the first known error whose pattern occurs in `text`."""
    return next((known for known in known_errors() if known.pattern.search(text)), None)


@cache
def known_errors() -> tuple[KnownError, ...]:
    """Return the catalog, more specific entries first."""
    return tuple(_known(entry) for entry in _read()["errors"])


@cache
def innocent_lines() -> re.Pattern[str]:
    """Return the pattern of lines that look like errors but come from healthy programs."""
    return _compile(_read()["innocent"])


@cache
def _read() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return content


def _known(entry: dict[str, Any]) -> KnownError:
    texts = {name: entry[name] for name in ("id", "cause", "cure", "link", "example", "partial")}
    pattern = _compile(entry["patterns"])
    return KnownError(pattern=pattern, wrong_input=entry.get("wrongInput", False), **texts)


def _compile(patterns: list[str]) -> re.Pattern[str]:
    """Join patterns; a blank matches any white space, because logs break lines anywhere."""
    return re.compile("|".join(f"(?:{p})" for p in patterns).replace(" ", r"\s+"), re.I | re.S)
