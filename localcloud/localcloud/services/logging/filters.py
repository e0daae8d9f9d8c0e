"""The part of Google's language for filters that serial ports need: comparisons joined by AND.

Source: cloud.google.com/logging/docs/view/logging-query-language. Text is compared without regard
to case; `:` finds a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from operator import eq, ge, gt, le, lt

from localcloud.core.call import Json
from localcloud.core.errors import ApiError, invalid

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_COMPARISON = re.compile(
    rf"([A-Za-z]\w*(?:\.(?:\w+|{_QUOTED}))*)\s*(<=|>=|=(?!~)|:|<|>)\s*({_QUOTED}|[^\s()\"]+)"
)
_PART = re.compile(rf"{_QUOTED}|\w+")
_SPACE = re.compile(r"\s*")
_AND = re.compile(r"AND\b")
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "=": eq,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_TEXTS = ("logName", "textPayload", "insertId")


@dataclass(frozen=True)
class Comparison:
    """A field, an operator and a value."""

    path: tuple[str, ...]
    operator: str
    value: str

    def holds(self, entry: Json) -> bool:
        """Return whether an entry has the field, and it compares so."""
        found: object = entry
        for part in self.path:
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, str):
            return False
        if self.path == ("timestamp",):
            return _ORDERS[self.operator](_seconds(found), _seconds(self.value))
        said, value = found.lower(), self.value.lower()
        return said == value if self.operator == "=" else value in said


def parse(text: str) -> list[Comparison]:
    """Return the comparisons that an entry must pass.

    Raises:
        ApiError: 400 for what is no filter, 501 for one that this cloud does not understand.
    """
    found: list[Comparison] = []
    position, depth, waits = _past_space(text, 0), 0, False
    while position < len(text):
        rest = text[position:]
        if rest[0] in "()" and not (rest[0] == ")" and (waits or depth == 0)):
            depth += 1 if rest[0] == "(" else -1
            position += 1
        elif (joined := _AND.match(rest)) and found and not waits:
            position, waits = position + joined.end(), True
        elif compared := _COMPARISON.match(rest):
            found.append(_comparison(*compared.groups()))
            position, waits = position + compared.end(), False
        else:
            raise _not_understood(text, position)
        position = _past_space(text, position)
    if waits or depth:
        raise invalid(f"Unparseable filter: syntax error at the end of {text!r}")
    return found


def _comparison(path: str, operator: str, value: str) -> Comparison:
    parts = tuple(_plain(part) for part in _PART.findall(path))
    compared = Comparison(parts, operator, _plain(value))
    if parts == ("timestamp",) and operator in _ORDERS:
        _seconds(compared.value)
        return compared
    known = path in _TEXTS or parts == ("resource", "type")
    known = known or parts[:-1] in (("labels",), ("resource", "labels"))
    if known and operator in ("=", ":"):
        return compared
    raise ApiError(501, f"the local cloud does not compare the field {path} by {operator}")


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def _seconds(moment: str) -> float:
    try:
        parsed = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        raise invalid(f"Unparseable filter: {moment!r} is no timestamp") from None
    if parsed.tzinfo is None:
        raise invalid(f"Unparseable filter: {moment!r} is a timestamp without a zone")
    return parsed.timestamp()


def _past_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _not_understood(text: str, position: int) -> ApiError:
    if text[position] in ")=<>:" or text.count('"', position) % 2:
        return invalid(f"Unparseable filter: syntax error at column {position + 1} of {text!r}")
    said = f"comparisons joined by AND, not what begins at column {position + 1} of {text!r}"
    return ApiError(501, f"the local cloud's filters are {said}")
