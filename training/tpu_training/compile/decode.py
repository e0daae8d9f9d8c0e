"""Dataclasses from JSON."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def decode(kind: type[T], content: Mapping[str, Any]) -> T:
    """Return the dataclass that `dataclasses.asdict` turned into `content`.

    Raises:
        KeyError: A field is missing.
        TypeError: A field has another type.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name], content[name]) for name in names})


def _value(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(one for one in get_args(hint) if one is not type(None))
        origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return decode(hint, value)  # type: ignore[arg-type]
    if origin is tuple:
        return tuple(_value(get_args(hint)[0], one) for one in value)
    if hint in (int, float, str, bool) and not isinstance(value, (hint, int)):
        raise TypeError(f"expected {hint.__name__}, found {value!r}")
    return value
