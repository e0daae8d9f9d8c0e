"""Fields that the local cloud knows and refuses by name, wherever in a request they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localcloud.core import data
from localcloud.core.discovery import Document, Json
from localcloud.core.errors import ApiError


def require_supported(document: Document, schema: str, body: Json) -> None:
    """Refuse a body, right by its `schema`, that sets a field of data/refused-fields.yaml.

    Raises:
        ApiError: 501 with the path of each such field.
    """
    refused = data.load("refused-fields").get(document.api, {})
    found = sorted(_found(document, refused, {"$ref": schema}, body, "")) if refused else []
    if found:
        raise ApiError(501, f"the local cloud does not implement {', '.join(found)}")


def _found(document: Document, refused: Json, spec: Json, value: Any, path: str) -> Iterator[str]:
    spec = document.schemas[spec["$ref"]] if "$ref" in spec else spec
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _found(document, refused, spec.get("items", {}), item, f"{path}[{index}]")
    elif isinstance(value, dict):
        names = {*refused.get("*", ()), *refused.get(spec.get("id", ""), ())}
        for name in spec.get("properties", {}).keys() & value.keys():
            here = f"{path}.{name}" if path else name
            if name in names and _asks(value[name]):
                yield here
            yield from _found(document, refused, spec["properties"][name], value[name], here)


def _asks(value: Any) -> bool:
    """Return whether a value sets anything: clients send empty ones for what is not set."""
    if isinstance(value, (dict, list)):
        return any(map(_asks, value.values() if isinstance(value, dict) else value))
    return value not in (None, "", False, 0)
