"""JSON records in a bucket or on a disk: each has a format, and every field is checked.

All who may write there may have written anything.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

FORMAT = 1
_FIELD = "format"
# JavaScript and floats tell whole numbers apart up to here.
_LARGEST = 2**53
_MOST_SHOWN = 40

_T = TypeVar("_T")
_hints = cache(get_type_hints)


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
    """Return what `dump` wrote of such a dataclass. Raises Unreadable."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    return sound(kind, content)


def sound(kind: type[_T], content: object) -> _T:
    """Return an object with a format as a dataclass. Raises Unreadable."""
    if not isinstance(content, dict):
        raise Unreadable("it is not a JSON object")
    plain = dict(content)
    found = plain.pop(_FIELD, None)
    # True equals 1 and is no format.
    if type(found) is not int or found != FORMAT:
        raise Unreadable(f"its format is {_shown(found)}; this release reads {FORMAT}")
    made: _T = _of(kind, plain, "")
    return made


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises OSError."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_bytes(data)
    unfinished.replace(path)


def _of(kind: Any, value: Any, where: str) -> Any:
    """Return a value as what an annotation names."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        return _object(kind, value, where)
    if origin in (Union, UnionType):
        # A value of none of these types fails as the first of them, which the error then names.
        return _of(type(value) if type(value) in parts else parts[0], value, where)
    if origin in (list, tuple) and isinstance(value, list):
        kinds = parts if parts[-1] is not ... and origin is tuple else parts[:1] * len(value)
        if len(kinds) == len(value):
            each = zip(kinds, value, strict=True)
            return origin(_of(one, it, f"{where}[{n}]") for n, (one, it) in enumerate(each))
    if origin is dict and isinstance(value, dict):
        return {_of(str, k, where): _of(parts[1], v, _path(where, k)) for k, v in value.items()}
    if value in parts if origin is Literal else _is_plain(kind, value):
        return value
    wanted = " or ".join(parts) if origin is Literal else (origin or kind).__name__
    raise Unreadable(f"{where} is {_shown(value)}, not {wanted}")


def _object(kind: Any, content: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    if unknown := sorted(content.keys() - hints.keys()):
        raise Unreadable(f"its field {_path(where, unknown[0])} is unknown")
    made = {name: _of(hints[name], content[name], _path(where, name)) for name in content}
    try:
        return kind(**made)
    except TypeError as error:  # A field is missing.
        raise Unreadable(str(error)) from None


def _is_plain(kind: Any, value: Any) -> bool:
    """Return whether it is of that type as every reader can hold it: no NaN, no half of a pair."""
    if kind is str:
        return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)
    if kind in (int, float) and type(value) in (int, kind):
        return abs(value) <= _LARGEST if type(value) is int else math.isfinite(value)
    return kind in (bool, NoneType) and isinstance(value, kind)


def _path(where: str, name: str) -> str:
    return f"{where}.{ascii(name)[1:-1]}".lstrip(".")


def _shown(value: object) -> str:
    """Return a value as a message may have it: short, without control characters."""
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
