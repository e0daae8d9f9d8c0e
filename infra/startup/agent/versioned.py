"""JSON objects as they lie in a bucket: each has a format, and no field is believed unchecked.

Whoever may write the bucket may write anything there, and so may a later release.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

FORMAT = 1
_FIELD = "format"
# JavaScript and floats tell whole numbers apart up to here.
_LARGEST = 2**53
_MOST_SHOWN = 40
_CALLED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}

_NOTHING = (MISSING, MISSING)

_T = TypeVar("_T")


class Unreadable(Exception):
    """An object is damaged, or of another format."""


def stamped(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its format."""
    return {_FIELD: FORMAT, **content}


def dump(content: Any) -> bytes:
    """Return the JSON of a mapping or a dataclass, with its format."""
    plain = stamped(content if isinstance(content, Mapping) else asdict(content))
    return (json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def load(kind: type[_T], data: bytes | str) -> _T:
    """Return what `dump` wrote of such an object. Raises Unreadable."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is no JSON: {error}") from None
    return sound(kind, content)


def sound(kind: type[_T], content: object) -> _T:
    """Return an object with a format as a dataclass or TypedDict. Raises Unreadable."""
    if not isinstance(content, dict):
        raise Unreadable("it is no JSON object")
    plain = dict(content)
    found = plain.pop(_FIELD, None)
    if type(found) is not int or found != FORMAT:
        raise Unreadable(f"its format is {_shown(found)}; this release reads {FORMAT}")
    made: _T = _object(kind, plain, "")
    return made


def _object(kind: Any, content: object, where: str) -> Any:
    if not isinstance(content, dict):
        raise Unreadable(f"{where} is {_shown(content)}, not an object")
    hints, needed = _form(kind)
    for name in sorted(content.keys() ^ hints.keys()):
        if name in content or name in needed:
            what = "is unknown" if name in content else "is missing"
            raise Unreadable(f"its field {_path(where, name)} {what}")
    return kind(**{name: _of(hints[name], content[name], _path(where, name)) for name in content})


@cache
def _form(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of an object's fields, and which it must have."""
    hints = get_type_hints(kind)
    if not is_dataclass(kind):
        return hints, frozenset(hints)
    given = [one for one in fields(kind) if (one.default, one.default_factory) == _NOTHING]
    return hints, frozenset(one.name for one in given)


def _of(kind: Any, value: Any, where: str) -> Any:
    """Return a value as what an annotation names."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind) or is_typeddict(kind):
        return _object(kind, value, where)
    if origin in (Union, UnionType):
        return _one_of(parts, value, where)
    if origin in (list, tuple) and isinstance(value, list):
        kinds = parts if parts[-1] is not ... and origin is tuple else parts[:1] * len(value)
        if len(kinds) == len(value):
            each = zip(kinds, value, strict=True)
            return origin(_of(one, it, f"{where}[{n}]") for n, (one, it) in enumerate(each))
    if origin is dict and isinstance(value, dict):
        return {_of(str, k, where): _of(parts[1], v, _path(where, k)) for k, v in value.items()}
    if value in parts if origin is Literal else _is_plain(kind, value):
        return value
    wanted = " or ".join(map(repr, parts)) if origin is Literal else _CALLED[origin or kind]
    raise Unreadable(f"{where} is {_shown(value)}, not {wanted}")


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return a value as the first type of a union that it fits."""
    *first, last = [one for one in kinds if one is not NoneType]
    if value is None and NoneType in kinds:
        return None
    for kind in first:
        with contextlib.suppress(Unreadable):
            return _of(kind, value, where)
    return _of(last, value, where)


def _is_plain(kind: Any, value: Any) -> bool:
    """Return whether it is of that type as every reader can hold it: no NaN, no half of a pair."""
    if kind is str:
        return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)
    if kind in (int, float) and type(value) in (int, kind):
        return abs(value) <= _LARGEST if type(value) is int else math.isfinite(value)
    return kind is bool and isinstance(value, bool)


def _path(where: str, name: str) -> str:
    return f"{where}.{ascii(name)[1:-1]}".lstrip(".")


def _shown(value: object) -> str:
    """Return a value as a message may have it: short, without control characters."""
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
