"""Kinds of plain resources: records in the store that are got, listed and deleted by name.

An API whose resource is plain declares a `Kind` and serves it; only what differs is a function of
its module: creating, changing, and methods that Google has for this resource alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

from localcloud.core import ApiError, Call, Cloud, Collection, Json, invalid, page
from localcloud.core.registry import Resources, project_resource
from localcloud.core.store import POLICY, Record, public


def project_name(call: Call) -> str:
    """Return the name of the project in the path."""
    return f"projects/{call.project}"


def only(call: Call, what: str, fields: tuple[str, ...]) -> Json:
    """Return those of the fields that the body has; 501 if it has others, besides its name.

    What Google takes and the local cloud lacks is refused: a user would miss it only later.
    """
    if others := sorted(set(call.body) - {*fields, "name"}):
        raise ApiError(501, f"the local cloud does not implement {what}' {', '.join(others)}")
    return call.sent(fields)


def known_mask(named: list[str], fields: tuple[str, ...], what: str) -> list[str]:
    """Return the fields of an update mask, which must name some of the fields and no others."""
    if not named or not set(fields).issuperset(named):
        raise invalid(f"{what} {named} must name some of {', '.join(fields)}.")
    return named


@dataclass(frozen=True)
class Kind:
    """A kind of resource.

    Attributes:
        collection: its methods and permissions.
        store: the store's kind; the key is the resource's full name, such as `projects/P/topics/T`.
        items: the field of a list, such as `topics`.
        missing: gets the full name and returns what the 404 says.
        parent: the name of the resource that a path's one is in; it refuses paths that Google does.
        listed: whose policies count for a list, which Google asks of the parent.
        remove: does what else goes with a deletion, or refuses it.
        view: what is shown of a record, by its name.
        chosen: whether a list shows a record.
        counted: a list says how many there are (`totalSize`).
    """

    collection: Collection
    store: str
    items: str
    missing: Callable[[str], str]
    parent: Callable[[Call], str] = project_name
    listed: Resources = project_resource
    remove: Callable[[Cloud, Call, str, Record], None] = lambda cloud, call, name, record: None
    view: Callable[[Cloud, str, Record], Json] = lambda cloud, name, record: public(record)
    chosen: Callable[[Call, Record], bool] = lambda call, record: True
    counted: bool = False

    @property
    def short(self) -> str:
        """The collection in paths, such as `topics`."""
        return self.collection.path.rpartition(".")[2]

    def prefix(self, call: Call) -> str:
        """Return what the names of all resources of the path's parent begin with."""
        return f"{self.parent(call)}/{self.short}/"

    def name(self, call: Call) -> str:
        """Return the full name of the resource in the path."""
        return self.prefix(call) + call.params[f"{self.short}Id"]

    def load(self, cloud: Cloud, call: Call) -> Record:
        """Return the record of the resource in the path; 404 when there is none."""
        return self.find(cloud, self.name(call))

    def find(self, cloud: Cloud, name: str) -> Record:
        """Return the record of the resource with a full name; 404 when there is none."""
        return cloud.store.load(self.store, name, ApiError(404, self.missing(name)))

    def existing(self, cloud: Cloud, call: Call) -> str:
        """Return the full name of the resource in the path; 404 when there is none."""
        self.load(cloud, call)
        return self.name(call)


def serve(kind: Kind, *methods: str) -> None:
    """Register `get`, `list` and `delete` of a kind, or those of them that are named."""
    collection = kind.collection

    def get(cloud: Cloud, call: Call) -> Json:
        return kind.view(cloud, kind.name(call), kind.load(cloud, call))

    def list_(cloud: Cloud, call: Call) -> Json:
        found = cloud.store.items(kind.store, kind.prefix(call))
        views = [kind.view(cloud, name, one) for name, one in found if kind.chosen(call, one)]
        return page(call, kind.items, views) | ({"totalSize": len(views)} if kind.counted else {})

    def delete(cloud: Cloud, call: Call) -> Json:
        name = kind.name(call)
        # One lock from the look to the deletion: what `remove` checks still holds then.
        with cloud.store.locked():
            kind.remove(cloud, call, name, kind.load(cloud, call))
            cloud.store.delete(kind.store, name)
            # A later resource of this name must not inherit the policy.
            cloud.store.delete(POLICY, name)
        return {}

    for verb, handler in {"get": get, "list": list_, "delete": delete}.items():
        if verb in (methods or ("get", "list", "delete")):
            collection.api.method(
                f"{collection.path}.{verb}",
                permission=f"{collection.permissions}.{verb}",
                resources=kind.listed if verb == "list" else collection.resources,
            )(handler)
