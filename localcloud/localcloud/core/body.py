"""JSON bodies: their schemas, their forms, and which of their fields a handler has read.

By the JSON mapping of protocol buffers (protobuf.dev/programming-guides/json, 2026-11-24) a field
may be written as in the .proto file, and an enum as its number. Google's clients for REST also
send what the path names, and ask for numbers with `$alt=json;enum-encoding=int`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from localcloud import data
from localcloud.core.call import Call, Json, camel
from localcloud.core.discovery import Document, document
from localcloud.core.errors import ApiError

_TEXT = {"type": "string"}
_NUMBER = re.compile(r"-?\d+")
_INTEGER_FORMATS = {"int32": 32, "uint32": 32, "int64": 64, "uint64": 64}
Translate = Callable[[str, list[str], Any], Any]
NUMBERS = "enum-encoding=int"
"""In the parameter `$alt`: the caller wants enums as numbers."""
_CALL: ContextVar[Call | None] = ContextVar("call", default=None)


def schema_problems(document: Document, schema: str, value: object) -> list[str]:
    """Return what is wrong with `value` as a `schema`, a sentence each; empty when it is right.

    A field that the document lacks is refused as Google refuses it: a typing error in a setting
    must not pass for one that was heard.
    """
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
        if not isinstance(value, list):
            found.append(f"Invalid value at '{path}': expected a list, got {value!r}")
            return
        for index, item in enumerate(value):
            _check(document, spec["items"], item, f"{path}[{index}]", found)
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
        below = properties.get(name, rest)
        if below is not None:
            # Most fields are texts, of which none is wrong.
            if type(child) is not str or below != _TEXT:
                _check(document, below, child, f"{path}.{name}" if path else name, found)
        else:
            at = f" at '{path}'" if path else ""
            found.append(
                f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'
            )


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
        found.append(
            f"Invalid value at '{path}': {value!r} is not one of {', '.join(spec['enum'])}"
        )


def _is_integer(value: object, format_: str) -> bool:
    # 64-bit numbers travel as strings in Google's JSON; both forms are accepted everywhere.
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return False
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return False
    bits = _INTEGER_FORMATS[format_]
    if format_.startswith("u"):
        return 0 <= int(value) < 1 << bits
    return abs(2 * int(value) + 1) < 1 << bits


def usual_form(document: Document, schema: str, body: Json, bound: Collection[str]) -> Json:
    """Return a request's body in the usual form, without the fields that its path binds."""
    if schema.endswith("Request"):  # The whole message, not only the resource in it.
        known = document.schemas[schema].get("properties", {})
        body = {key: value for key, value in body.items() if key in known or key not in bound}
    usual: Json = _translated(document, {"$ref": schema}, body, "", _to_name)
    return usual


def with_numbers(document: Document, schema: str, answer: Json) -> Json:
    """Return an answer with enums as numbers.

    Python clients of Google's newer kind ask for it: names that they do not know yet would be an
    error for them.
    """
    translated: Json = _translated(document, {"$ref": schema}, answer, "", _to_number)
    return translated


def _translated(document: Document, spec: Json, value: Any, at: str, translate: Translate) -> Any:
    """Return a value with names in camel case and enums translated; `at` names its schema."""
    if "$ref" in spec:
        at, spec = spec["$ref"], document.schemas[spec["$ref"]]
    if isinstance(value, list):
        items = spec.get("items", {})
        return [_translated(document, items, item, at, translate) for item in value]
    if isinstance(value, dict):
        known, rest = spec.get("properties", {}), spec.get("additionalProperties", {})
        # What an Any holds comes with its type.
        inner = str(value.get("@type", "")).rpartition(".")[2]
        known = known or document.schemas.get(inner, {}).get("properties", {})
        at = inner or at
        translated = {}
        for name, one in value.items():
            key = camel(name) if name not in known and camel(name) in known else name
            below = known.get(key, rest)
            translated[key] = _translated(document, below, one, f"{at}.{key}", translate)
        return translated
    return translate(at, spec["enum"], value) if "enum" in spec else value


def _numbers(at: str) -> dict[str, int]:
    numbers: dict[str, int] = data.load("enum-numbers").get(at, {})
    return numbers


def _to_name(at: str, names: list[str], value: Any) -> Any:
    """Return the name of an enum's number.

    Discovery documents have names in the order of their numbers, which mostly begin with 0; the
    others are in data/enum-numbers.yaml.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    own = {number: name for name, number in _numbers(at).items()}
    left = dict(enumerate(names)).get(value, value)
    return own.get(value, value if left in own.values() else left)


def _to_number(at: str, names: list[str], value: Any) -> Any:
    return _numbers(at).get(value, names.index(value)) if value in names else value


# A handler reads a field by its name, or all of them by copying, storing or comparing the whole.
# What it would keep without acting on it is in data/refused-fields.yaml, and counts as not read.


class _Tracked(dict[str, Any]):
    """An object that knows which of its fields were read.

    Every way to a value must pass here; dict's own C code calls none of these for the others.
    """

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
    """Return a copy of JSON without what `tracked` added; that reads all of it."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


@contextmanager
def reading(call: Call) -> Iterator[None]:
    """Make the handler of a call read all of its body, by its first change or by its end."""
    token = _CALL.set(call)
    try:
        yield
        require_read()
    finally:
        _CALL.reset(token)


def require_read() -> None:
    """Refuse the call that is being handled when a field within its mask was not read.

    It comes before the first change of a record, so that a refused call has changed nothing.
    """
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
    # dict's own `items`: that of `_Tracked` would mark every field as read.
    for name, one in dict.items(value):
        below = known.get(name, rest)
        path = f"{at}.{name}" if at else name
        # Clients send back what they have read, and spell out defaults; neither asks for anything.
        if below.get("readOnly") or not _says(one, below.get("default")):
            continue
        if name not in value.seen or name in kept_only:
            yield path
        else:
            yield from _unread(document, below, one, path)


def _says(value: Any, default: Any = None) -> bool:
    """Return whether a value differs from that of a field that is not sent."""
    if isinstance(value, list):
        return any(_says(item) for item in value)
    if isinstance(value, dict):
        return any(_says(item) for item in dict.values(value))
    return bool(value) and value not in ("0", default)
