"""Check the fields that a user's `Params` adds to those of every model."""

import dataclasses
import inspect
import re
from typing import Any, get_type_hints

from tpu_training.models.params import KINDS, Params, check, convert


def field_problems(kind: type[Params]) -> list[str]:
    """Return `LINE: problem` for each field of `kind` that is no parameter."""
    types = get_type_hints(kind)
    return [
        f"{_line(kind, field.name)}: {field.name}: {problem}"
        for field in dataclasses.fields(kind)
        if (problem := _problem(field, types[field.name]))
    ]


def _problem(field: "dataclasses.Field[Any]", kind: type) -> str:
    if kind not in KINDS:
        name = getattr(kind, "__name__", kind)
        return f"its type {name} can't be given on a command line; expected int, float or str"
    if "description" not in field.metadata:
        default = "DEFAULT" if field.default is dataclasses.MISSING else repr(field.default)
        if field.name in Params.__dataclass_fields__:
            return f'declare it with base.changed("{field.name}", {default})'
        return f'declare it with base.param({default}, "what it means")'
    try:
        check(convert(field.default, kind), field.metadata)
    except ValueError as error:
        return f"its default {field.default!r}: {error}"
    return ""


def _line(kind: type, name: str) -> int:
    """Return the line of the class or base class that declares `name`."""
    for owner in kind.__mro__:
        if name in vars(owner).get("__annotations__", {}):
            lines, first = inspect.getsourcelines(owner)
            for number, line in enumerate(lines):
                if re.match(rf"\s+{name}\s*:", line):
                    return first + number
    return 1
