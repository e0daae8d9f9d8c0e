"""Checks JSON bodies against the schemas of a discovery document."""

from __future__ import annotations

import re
from typing import Any

from localcloud.core.call import Json
from localcloud.core.discovery import Document

_INTEGER_FORMATS = {"int32": 32, "uint32": 32, "int64": 64, "uint64": 64}


def problems(document: Document, schema: str, value: object) -> list[str]:
    """Return what is wrong with `value` as a `schema`, a sentence each; empty when it is right."""
    found: list[str] = []
    _check(document, {"$ref": schema}, value, "", found)
    return found


def _check(document: Document, spec: Json, value: object, path: str, found: list[str]) -> None:
    if value is None:
        return
    if "$ref" in spec:
        _check(document, document.schemas[spec["$ref"]], value, path, found)
        return
    kind = spec.get("type", "any")
    if kind == "object":
        _check_object(document, spec, value, path, found)
    elif kind == "array":
        _check_array(document, spec, value, path, found)
    elif kind != "any":
        _check_scalar(spec, kind, value, path, found)


def _check_object(
    document: Document, spec: Json, value: object, path: str, found: list[str]
) -> None:
    if not isinstance(value, dict):
        found.append(f"Invalid value at '{path}': expected an object, got {value!r}")
        return
    properties: dict[str, Any] = spec.get("properties", {})
    rest = spec.get("additionalProperties")
    for name, child in value.items():
        here = f"{path}.{name}" if path else name
        if name in properties:
            _check(document, properties[name], child, here, found)
        elif rest is not None:
            _check(document, rest, child, here, found)
        else:
            at = f" at '{path}'" if path else ""
            found.append(
                f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'
            )


def _check_array(
    document: Document, spec: Json, value: object, path: str, found: list[str]
) -> None:
    if not isinstance(value, list):
        found.append(f"Invalid value at '{path}': expected a list, got {value!r}")
        return
    for index, item in enumerate(value):
        _check(document, spec["items"], item, f"{path}[{index}]", found)


def _check_scalar(spec: Json, kind: str, value: object, path: str, found: list[str]) -> None:
    format_ = spec.get("format", "")
    if format_ in _INTEGER_FORMATS:
        if not _is_integer(value, format_):
            found.append(f"Invalid value at '{path}' (TYPE_{format_.upper()}), {value!r}")
    elif kind == "boolean":
        if not isinstance(value, bool):
            found.append(f"Invalid value at '{path}' (TYPE_BOOL), {value!r}")
    elif kind in ("number", "integer"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            found.append(f"Invalid value at '{path}': expected a number, got {value!r}")
    elif not isinstance(value, str):
        found.append(f"Invalid value at '{path}' (TYPE_STRING), {value!r}")
    elif "enum" in spec and value not in spec["enum"] and value != "":
        found.append(f"Invalid value at '{path}': {value!r} is none of {', '.join(spec['enum'])}")


def _is_integer(value: object, format_: str) -> bool:
    # 64-bit numbers travel as strings in Google's JSON; both forms are accepted everywhere.
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return False
    if isinstance(value, str) and not re.fullmatch(r"-?\d+", value):
        return False
    bits = _INTEGER_FORMATS[format_]
    if format_.startswith("u"):
        return 0 <= int(value) < 1 << bits
    return abs(2 * int(value) + 1) < 1 << bits
