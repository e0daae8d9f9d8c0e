"""The forms of JSON that Google's APIs take and give besides the usual one.

By the JSON mapping of protocol buffers (protobuf.dev/programming-guides/json, 2026-11-24) a field
may be written as in the .proto file, and an enum as its number. Google's clients for REST also
send what the path names, and ask for numbers with `$alt=json;enum-encoding=int`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from localcloud.core import data
from localcloud.core.call import Json
from localcloud.core.discovery import Document
from localcloud.core.fields import camel

Translate = Callable[[str, list[str], Any], Any]
NUMBERS = "enum-encoding=int"
"""In the parameter `$alt`: the caller wants enums as numbers."""


def taken(document: Document, schema: str, body: Json, bound: Collection[str]) -> Json:
    """Return a request's body in the usual form, without the fields that its path binds."""
    if schema.endswith("Request"):  # The whole message, not only the resource in it.
        known = document.schemas[schema].get("properties", {})
        body = {key: value for key, value in body.items() if key in known or key not in bound}
    usual: Json = _walk(document, {"$ref": schema}, body, "", _name)
    return usual


def numbered(document: Document, schema: str, answer: Json) -> Json:
    """Return an answer with enums as numbers."""
    told: Json = _walk(document, {"$ref": schema}, answer, "", _number)
    return told


def _walk(document: Document, spec: Json, value: Any, at: str, translate: Translate) -> Any:
    if "$ref" in spec:
        at, spec = spec["$ref"], document.schemas[spec["$ref"]]
    if isinstance(value, list):
        items = spec.get("items", {})
        return [_walk(document, items, item, at, translate) for item in value]
    if isinstance(value, dict):
        known, rest = spec.get("properties", {}), spec.get("additionalProperties", {})
        # What an Any holds has its type beside it.
        inner = str(value.get("@type", "")).rpartition(".")[2]
        known = known or document.schemas.get(inner, {}).get("properties", {})
        at = inner or at
        named = {key if key in known else _usual(key, known): one for key, one in value.items()}
        return {
            key: _walk(document, known.get(key, rest), one, f"{at}.{key}", translate)
            for key, one in named.items()
        }
    return translate(at, spec["enum"], value) if "enum" in spec else value


def _usual(key: str, known: Collection[str]) -> str:
    return camel(key) if camel(key) in known else key


def _numbers(at: str) -> dict[str, int]:
    numbers: dict[str, int] = data.load("enum-numbers").get(at, {})
    return numbers


def _name(at: str, names: list[str], value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    own = {number: name for name, number in _numbers(at).items()}
    left = dict(enumerate(names)).get(value, value)
    return own.get(value, value if left in own.values() else left)


def _number(at: str, names: list[str], value: Any) -> Any:
    return _numbers(at).get(value, names.index(value)) if value in names else value
