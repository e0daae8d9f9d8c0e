"""Which fields of a request's body were read: one that nothing reads is not taken in silence.

A handler reads a field by its name, or all of them by copying, storing or comparing the whole. What
it would keep so without doing it is in data/refused-fields.yaml, and counts as not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from localcloud.core import data
from localcloud.core.call import Call, Json
from localcloud.core.discovery import Document, document
from localcloud.core.errors import ApiError

_CALL: ContextVar[Call | None] = ContextVar("call", default=None)


class _Tracked(dict[str, Any]):
    """An object that knows which of its fields were read."""

    def __init__(self, fields: Iterable[tuple[str, Any]]) -> None:
        super().__init__(fields)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.seen.add(name)
        return super().pop(name, *default)

    def __contains__(self, name: object) -> bool:
        self.seen.add(str(name))
        return super().__contains__(name)

    def items(self) -> Any:
        self.seen.update(self)
        return super().items()

    def values(self) -> Any:
        self.seen.update(self)
        return super().values()

    def __iter__(self) -> Iterator[str]:
        # Without it `{**body}` would not come by __getitem__.
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        return bool(plain(self) == plain(other))

    def __deepcopy__(self, memo: object) -> Json:
        copied: Json = plain(self)
        return copied


def tracked(value: Any) -> Any:
    """Return JSON whose objects know which of their fields were read."""
    if isinstance(value, list):
        return [tracked(item) for item in value]
    if isinstance(value, dict):
        return _Tracked((name, tracked(one)) for name, one in value.items())
    return value


def plain(value: Any) -> Any:
    """Return a copy of JSON, which reads all of it."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


@contextmanager
def reading(call: Call) -> Iterator[None]:
    """Hold the handler of a call to its body: before its first change, else at its end."""
    token = _CALL.set(call)
    try:
        yield
        require_read()
    finally:
        _CALL.reset(token)


def require_read() -> None:
    """Refuse the call that is being handled when a field within its mask was not read."""
    call = _CALL.get()
    if call is None or not call.body:
        return
    known = document(call.method.api, call.method.version)
    mask = {path.partition(".")[0] for path in call.mask()}
    counts = call.body.keys() if not mask or "*" in mask else mask
    found = set(_unread(known, {"$ref": call.method.request}, call.body, ""))
    unread = sorted(path for path in found if re.split(r"[.\[]", path)[0] in counts)
    if unread:
        raise ApiError(
            501,
            f"the local cloud does not implement {', '.join(unread)} of {call.method.id}; nothing "
            "was changed",
        )
    _CALL.set(None)


def _unread(document: Document, spec: Json, value: Any, at: str) -> Iterator[str]:
    if "$ref" in spec:
        spec = document.schemas[spec["$ref"]]
    if isinstance(value, list):
        for item in value:
            yield from _unread(document, spec.get("items", {}), item, f"{at}[]")
    if not isinstance(value, _Tracked):
        return
    known, rest = spec.get("properties", {}), spec.get("additionalProperties", {})
    refused = data.load("refused-fields").get(document.api, {})
    kept_only = {*refused.get("*", ()), *refused.get(spec.get("id", ""), ())} & known.keys()
    for name, one in dict.items(value):
        below = known.get(name, rest)
        here = f"{at}.{name}" if at else name
        if below.get("readOnly") or not _says(one, below.get("default")):
            continue
        if name not in value.seen or name in kept_only:
            yield here
        else:
            yield from _unread(document, below, one, here)


def _says(value: Any, default: Any = None) -> bool:
    """Return whether a value is other than what stands where the field is not sent."""
    if isinstance(value, list):
        return any(_says(item) for item in value)
    if isinstance(value, dict):
        return any(_says(item) for item in dict.values(value))
    return bool(value) and value not in ("0", default)
