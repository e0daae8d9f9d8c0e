"""What TensorFlow's and Google's error texts mean, and what cures them.

The catalogue itself is known_errors.json: JSON, because a machine that trains may have no YAML.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "known_errors.json"


@dataclass(frozen=True)
class KnownError:
    """An error text that users meet: how to recognise it, why it comes, what cures it.

    `example` is the text as it was seen, `partial` the piece of it that is enough. `wrong_input`
    tells the person's mistakes from failures of the world.
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
    """The catalogue; the more special ones come first."""
    return tuple(_known(entry) for entry in _read()["errors"])


@cache
def innocent_lines() -> re.Pattern[str]:
    """Matches lines that look like errors and are none: healthy programs write them."""
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
    """One pattern of several, in which a blank is any white space: logs break lines anywhere."""
    return re.compile("|".join(f"(?:{p})" for p in patterns).replace(" ", r"\s+"), re.I | re.S)
