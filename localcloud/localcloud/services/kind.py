"""Plain resources of an API: records in the store that are got, listed and deleted by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localcloud.core.call import Call, Json, page
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.registry import Collection, Resources, project_resource
from localcloud.core.store import POLICY, Record, public


def project_name(call: Call) -> str:
    """Return the name of the project in the path."""
    return f"projects/{call.project}"


def _nothing(cloud: Cloud, call: Call, name: str, record: Record) -> None:
    """Do nothing, for kinds that have nothing else to remove."""


@dataclass(frozen=True)
class Kind:
    """A kind of resource.

    Attributes:
        collection: its methods and permissions.
        store: the store's kind; the key is the resource's full name, such as `projects/P/topics/T`.
        items: the field of a list, such as `topics`.
        missing: gets the full name and returns what the 404 says.
        parent: the name of the resource that a path's one is in.
        listed: whose policies count for a list.
        remove: does what else goes with a deletion, or refuses it.
        view: what is shown of a record.
        counted: a list says how many there are.
    """

    collection: Collection
    store: str
    items: str
    missing: Callable[[str], str]
    parent: Callable[[Call], str] = project_name
    listed: Resources = project_resource
    remove: Callable[[Cloud, Call, str, Record], None] = _nothing
    view: Callable[[Record], Json] = public
    counted: bool = False

    def prefix(self, call: Call) -> str:
        """Return what the names of all resources of the path's parent begin with."""
        return f"{self.parent(call)}/{self.collection.path.rpartition('.')[2]}/"

    def name(self, call: Call) -> str:
        """Return the full name of the resource in the path."""
        return self.prefix(call) + call.params[f"{self.collection.path.rpartition('.')[2]}Id"]

    def load(self, cloud: Cloud, call: Call) -> Record:
        """Return the record of the resource in the path; 404 when there is none."""
        name = self.name(call)
        return cloud.store.load(self.store, name, ApiError(404, self.missing(name)))

    def existing(self, cloud: Cloud, call: Call) -> str:
        """Return the full name of the resource in the path; 404 when there is none."""
        self.load(cloud, call)
        return self.name(call)


def serve(kind: Kind) -> None:
    """Register `get`, `list` and `delete` of a kind."""
    collection = kind.collection

    @collection.method("get")
    def get(cloud: Cloud, call: Call) -> Json:
        return kind.view(kind.load(cloud, call))

    permission = f"{collection.permissions}.list"

    @collection.api.method(f"{collection.path}.list", permission=permission, resources=kind.listed)
    def list_(cloud: Cloud, call: Call) -> Json:
        found = cloud.store.items(kind.store, kind.prefix(call))
        shown = page(call, kind.items, [kind.view(record) for _, record in found])
        return shown | ({"totalSize": len(found)} if kind.counted else {})

    @collection.method("delete")
    def delete(cloud: Cloud, call: Call) -> Json:
        name = kind.name(call)
        with cloud.store.locked():
            kind.remove(cloud, call, name, kind.load(cloud, call))
            cloud.store.delete(kind.store, name)
            cloud.store.delete(POLICY, name)
        return {}
