"""A resource as plain data, whichever way the engine hands it over."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from pulumi_policy.proxy import UnknownValueError


class _Unknown:
    """A value that a preview cannot know: Google decides it."""

    def __repr__(self) -> str:
        return "(known after the update)"


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True)
class Resource:
    """One resource of a stack.

    Attributes:
        type: Pulumi's type token, for example `gcp:storage/bucket:Bucket`.
        name: its name in the program.
        urn: its URN, which names the stack.
        props: its properties; `UNKNOWN` stands for what a preview cannot know.
        protect: whether Pulumi refuses to delete it.
    """

    type: str
    name: str
    urn: str
    props: Mapping[str, Any] = field(default_factory=dict)
    protect: bool = False

    @property
    def stack(self) -> str:
        """The stack's name (`urn:pulumi:STACK::PROJECT::…`)."""
        return self.urn.split("::")[0].removeprefix("urn:pulumi:")

    @property
    def title(self) -> str:
        """Kind and name, as messages say it; the cloud's own name where there is one."""
        own = self.props.get("name")
        kind = self.type.rpartition(":")[2]
        return f"{kind} {own}" if isinstance(own, str) else f"{kind} {self.name}"

    def matches(self, patterns: Sequence[str]) -> bool:
        """Return whether one of the patterns (`*` stands for anything) names the resource."""
        return named(self.name, patterns) or named(self.props.get("name"), patterns)

    def wrong(self, path: str, value: object, why: str, cure: str) -> str:
        """Return the message about one property."""
        return f"{self.title}: {path} is {shown(value)}, {why}. {cure}."


def in_stack(resource: Resource, patterns: Sequence[str]) -> bool:
    """Return whether the patterns name the resource's stack."""
    return named(resource.stack, patterns)


def named(name: object, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns (`*` stands for anything) matches a known name."""
    return isinstance(name, str) and any(fnmatchcase(name, pattern) for pattern in patterns)


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    if value is None:
        return "not set"
    return json.dumps(value, ensure_ascii=False, default=repr)


def plain(value: Any) -> Any:
    """Return the engine's properties without its proxies, which raise at unknown values.

    What the engine adds for itself (`__defaults`) is left out.
    """
    if isinstance(value, Mapping):
        return dict(_items(value, (key for key in value if not key.startswith("__"))))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [item for _, item in _items(value, range(len(value)))]
    return value


def _items(values: Any, keys: Any) -> Iterator[tuple[Any, Any]]:
    for key in keys:
        try:
            yield key, plain(values[key])
        except UnknownValueError:
            yield key, UNKNOWN


def group(props: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a property that is a group of others; empty if it is absent or unknown."""
    value = props.get(name)
    return value if isinstance(value, Mapping) else {}


def items(props: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return a property that is a list; empty if it is absent or unknown."""
    value = props.get(name)
    return value if isinstance(value, list) else []
