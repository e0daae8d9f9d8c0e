"""What sets one kind of compute resource apart from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.services.compute import catalog

Prepare = Callable[[Cloud, Call, str, Json], None]
Change = Callable[[Cloud, Call, Json, Json], str | None]
Scope = Literal["global", "regions", "zones"]
Remove = Callable[[Cloud, str, Json], None]
_OWN = ("labels", "metadata")


def _nothing(*_: object) -> None:
    """Leave a resource as it is, for kinds without anything to prepare or to remove."""


def place_of(call: Call) -> str:
    """Return the scope that the path names: `zones/z`, `regions/r` or `global`."""
    if "zone" in call.params:
        catalog.require_zone(call.params["zone"])
        return f"zones/{call.params['zone']}"
    if "region" in call.params:
        catalog.require_region(call.params["region"])
        return f"regions/{call.params['region']}"
    return "global"


@dataclass(frozen=True)
class Kind:
    """A kind of compute resource.

    Attributes:
        collection: in paths, such as `addresses`.
        parameter: the path's variable, such as `address`; the kind is `compute#address` then.
        scope: where it lives.
        defaults: what a new record has where the caller says nothing.
        prepare: checks a new record (path and body) and fills in what Google fills in.
        change: checks a patched record against the one before; the type of the operation, where
            it is another than `patch`. None for a kind without patch.
        remove: does what else goes with a deletion, or refuses it.
        removal: the effect of a deletion. One of the kind's own checks everything itself, so
            that the operation fails, not the call.
        labelled: it has labels with a fingerprint.
        stamped: it has a fingerprint that a patch must match.
        also: permissions that it takes, beside the kind's own, to create, change or delete one.
        latency: the prefix of its entries in data/latencies.yaml.
        methods: the collection in method ids and permissions, where it is another, such as
            `globalAddresses`.
        inserts: the type of the operation that makes one.
    """

    collection: str
    parameter: str
    scope: Scope
    defaults: Json = field(default_factory=dict)
    prepare: Prepare = _nothing
    change: Change | None = None
    remove: Remove = _nothing
    removal: str = "compute.remove"
    labelled: bool = False
    stamped: bool = False
    also: tuple[str, ...] = ()
    latency: str = "compute"
    methods: str = ""
    inserts: str = "insert"

    @property
    def kind(self) -> str:
        """The kind of its records, such as `compute#address`."""
        return f"compute#{self.parameter}"

    def method(self, verb: str) -> str:
        """Return the id of the method for `verb`, without the API's name."""
        return f"{self.methods or self.collection}.{verb}"

    def permission(self, verb: str) -> str:
        """Return the IAM permission for `verb`."""
        return f"compute.{self.method(verb)}"

    def path(self, call: Call) -> str:
        """Return the path of the resource that a call names."""
        name = call.params.get(self.parameter) or call.params["resource"]
        return f"projects/{call.project}/{place_of(call)}/{self.collection}/{name}"


def tidy(sent: Any) -> Any:
    """Return a request without what means "not set": nulls, empty strings and empty lists.

    Google's provider sends them for every option that its user left out. Labels and metadata are
    the user's own and stay as they are.
    """
    if isinstance(sent, list):
        return [tidy(item) for item in sent if item is not None]
    if not isinstance(sent, dict):
        return sent
    fields = {key: value if key in _OWN else tidy(value) for key, value in sent.items()}
    return {key: value for key, value in fields.items() if value not in (None, "", [])}
