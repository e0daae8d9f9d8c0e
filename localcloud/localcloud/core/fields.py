"""What every Google API does with fields: partial responses (`fields`), bytes as base64."""

from __future__ import annotations

import re
from typing import Any

_URL_SAFE = str.maketrans("+/", "-_")
Mask = dict[str, "Mask"]


def same_bytes(one: str | None, other: str | None) -> bool:
    """Return whether two values of a field of the format `byte` are the same.

    Google's APIs take both alphabets of base64: gcloud sends what it got in the URL-safe one
    (`_SafeEncodeBytes` in apitools/base/py/encoding_helper.py).
    """
    return (one or "").translate(_URL_SAFE) == (other or "").translate(_URL_SAFE)


def camel(name: str) -> str:
    """Return a field's name in JSON: clients may write `display_name` for `displayName`."""
    return re.sub("_(.)", lambda found: found[1].upper(), name)


def parse(text: str) -> Mask:
    """Return the mask `a,b(c,d/e)` as a tree; an empty subtree means everything below."""
    mask, rest = _list(text)
    if rest:
        raise ValueError(f"Invalid field selection {text}")
    return mask


def apply(mask: Mask, value: Any) -> Any:
    """Return only what `mask` names of `value`."""
    if not mask or "*" in mask:
        return value
    if isinstance(value, list):
        return [apply(mask, item) for item in value]
    if isinstance(value, dict):
        return {key: apply(mask[key], item) for key, item in value.items() if key in mask}
    return value


def _list(text: str) -> tuple[Mask, str]:
    mask: Mask = {}
    while text:
        rest = _item(text, mask)
        if not rest.startswith(","):
            return mask, rest
        text = rest[1:]
    return mask, text


def _item(text: str, mask: Mask) -> str:
    end = next((i for i, char in enumerate(text) if char in ",/()"), len(text))
    name, rest = text[:end].strip(), text[end:]
    if not name:
        raise ValueError(f"Invalid field selection {text}")
    below = mask.setdefault(name, {})
    if rest.startswith("/"):
        return _item(rest[1:], below)
    if rest.startswith("("):
        inner, rest = _list(rest[1:])
        if not rest.startswith(")"):
            raise ValueError(f"Invalid field selection {text}")
        below.update(inner)
        return rest[1:]
    return rest
