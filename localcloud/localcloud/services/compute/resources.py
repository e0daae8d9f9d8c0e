"""Kinds of compute resources, and the methods, fingerprints and users that all of them have."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from localcloud.core import ApiError, Cloud, Hook, Record, Work, access, effect, not_found, rfc3339
from localcloud.core.call import Call, Json, same_bytes
from localcloud.services.compute import api, catalog
from localcloud.services.compute.api import API, STORE, shown, url_of

Prepare = Callable[[Cloud, Call, str, Json], None]
Change = Callable[[Cloud, Call, Json, Json], None]
Scope = Literal["global", "regions", "zones"]
Remove = Callable[[Cloud, str, Json], None]
_OWN = ("labels", "metadata")


def place_of(call: Call) -> str:
    """Return the scope that the path names: `zones/z`, `regions/r` or `global`."""
    if zone := call.params.get("zone"):
        catalog.require_zone(zone)
        return f"zones/{zone}"
    if region := call.params.get("region"):
        catalog.require_region(region)
        return f"regions/{region}"
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
        change: checks a patched record against the one before. None for a kind without patch.
        remove: does what else goes with a deletion, or refuses it.
        removal: the effect of a deletion. One of the kind's own checks everything itself, so
            that the operation fails, not the call.
        labelled: it has labels with a fingerprint.
        stamped: it has a fingerprint that a patch must match.
        also: permissions that creating, changing or deleting one takes in addition.
        latency: the prefix of its entries in data/latencies.yaml.
        methods: the collection in method ids and permissions, where it is another, such as
            `globalAddresses`.
        inserts: the type of the operation that makes one.
    """

    collection: str
    parameter: str
    scope: Scope
    defaults: Json = field(default_factory=dict)
    prepare: Prepare = lambda cloud, call, path, record: None
    change: Change | None = None
    remove: Remove = lambda cloud, path, record: None
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

    Google's provider sends them for every option that its user left out.
    """
    if isinstance(sent, list):
        return [tidy(item) for item in sent if item is not None]
    if not isinstance(sent, dict):
        return sent
    fields = {key: value if key in _OWN else tidy(value) for key, value in sent.items()}
    return {key: value for key, value in fields.items() if value not in (None, "", [])}


_NAME = re.compile(r"(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)")
Edit = Callable[[Cloud, Call, Record], None]
changed: Hook[[Cloud, str], None] = Hook()
"""Runs when the resource at a path was created, changed or removed."""
# Output only: what a client has read and sends back is ignored.
_OUTPUT = ("id", "kind", "selfLink", "selfLinkWithId", "creationTimestamp", "params")


def load(cloud: Cloud, path: str) -> Record:
    """Return the stored resource at `path`; 404 when there is none."""
    return cloud.store.load(STORE, path, not_found(path))


def load_named(cloud: Cloud, path: str) -> tuple[str, Record]:
    """Return path and record of the resource at `path`, whose last part may be its number."""
    collection, _, name = path.rpartition("/")
    if name.isdigit():
        for found, record in cloud.store.items(STORE, f"{collection}/"):
            if record.get("id") == name:
                return found, record
    return path, load(cloud, path)


def require_name(name: str) -> None:
    """Refuse a name that breaks Google's rules for resource names."""
    if not _NAME.fullmatch(name):
        raise api.wrong_value("resource.name", name, f"Must be a match of regex '{_NAME.pattern}'")


def require_new(cloud: Cloud, path: str) -> None:
    """Refuse a name that exists already."""
    if cloud.store.get(STORE, path) is not None:
        raise ApiError(409, f"The resource '{path}' already exists", reason="alreadyExists")


def require_permission(cloud: Cloud, call: Call, permission: str) -> None:
    """Refuse a caller who lacks `permission` in the project."""
    access.require(cloud, call.principal, permission, [f"projects/{call.project}"])


def identity(cloud: Cloud, kind: str, path: str, name: str) -> Json:
    """Return the fields that every resource has."""
    return {
        "kind": kind,
        "id": str(cloud.operations.number()),
        "creationTimestamp": rfc3339(cloud.clock.now()),
        "name": name,
        "selfLink": url_of(path),
        **api.place_link(path),
    }


def serve(kind: Kind) -> None:
    """Register the methods of a kind, as far as they are plain.

    Every change answers an operation, also those that take no time: clients of Compute Engine wait
    for one whatever they do.
    """

    def insert(cloud: Cloud, call: Call) -> Json:
        _require_also(cloud, call, kind)
        # Labels take a permission of their own, wherever they come from.
        if kind.labelled and call.body.get("labels"):
            require_permission(cloud, call, kind.permission("setLabels"))
        path = add(cloud, call, kind, place_of(call), call.body)
        return begin(cloud, call, kind, kind.inserts, path, "compute.settle", "create")

    def get(cloud: Cloud, call: Call) -> Json:
        return shown(call, load_named(cloud, kind.path(call))[1])

    def delete(cloud: Cloud, call: Call) -> Json:
        _require_also(cloud, call, kind)
        path = kind.path(call)
        with cloud.store.locked():
            record = load(cloud, path)
            # Others check in their effect what this checks here.
            if kind.removal == "compute.remove":
                require_unused(cloud, path)
                kind.remove(cloud, path, record)
        return begin(cloud, call, kind, "delete", path, kind.removal, "delete")

    # What a kind can change in place it checks in `change`; a fingerprint that is not current means
    # another caller was faster.
    def patch(cloud: Cloud, call: Call) -> Json:
        _require_also(cloud, call, kind)
        path = kind.path(call)
        with cloud.store.locked():
            before = load(cloud, path)
            if kind.stamped:
                require_match(call.body.get("fingerprint"), before["fingerprint"], "resource")
            fresh = {key: value for key, value in call.body.items() if key not in _OUTPUT}
            after = tidy(before | fresh)
            if kind.change:
                kind.change(cloud, call, before, after)
            return replace(cloud, call, kind, "patch", path, after)

    def set_labels(cloud: Cloud, call: Call, record: Record) -> None:
        require_match(call.body.get("labelFingerprint"), record["labelFingerprint"], "labels")
        record["labels"] = call.body.get("labels", {})

    API.method(kind.method("insert"), permission=kind.permission("create"))(insert)
    API.method(kind.method("get"), permission=kind.permission("get"))(get)
    API.method(kind.method("delete"), permission=kind.permission("delete"))(delete)
    serve_lists(kind)
    if kind.change:
        API.method(kind.method("patch"), permission=kind.permission("update"))(patch)
    if kind.labelled:
        changes(kind, "setLabels")(set_labels)


def serve_lists(kind: Kind, view: Callable[[Record], Json] = dict) -> None:
    """Register `list` and, outside the global scope, `aggregatedList`; `view` shows a record."""

    def list_(cloud: Cloud, call: Call) -> Json:
        path = f"projects/{call.project}/{place_of(call)}/{kind.collection}"
        records = [view(record) for _, record in cloud.store.items(STORE, f"{path}/")]
        return api.page(call, f"{kind.kind}List", path, records)

    def aggregated(cloud: Cloud, call: Call) -> Json:
        found: dict[str, list[Json]] = {place: [] for place in _places(cloud, call, kind)}
        for path, record in cloud.store.items(STORE, f"projects/{call.project}/{kind.scope}/"):
            if path.split("/")[-2] == kind.collection:
                found.setdefault(_scope_of(path), []).append(view(record))
        path = f"projects/{call.project}/aggregated/{kind.collection}"
        return api.aggregate(call, f"{kind.kind}AggregatedList", path, kind.collection, found)

    API.method(kind.method("list"), permission=kind.permission("list"))(list_)
    if kind.scope != "global":
        API.method(kind.method("aggregatedList"), permission=kind.permission("list"))(aggregated)


def add(cloud: Cloud, call: Call, kind: Kind, place: str, body: Json) -> str:
    """Store a new resource in a scope (such as `zones/z`), checked and completed; its path.

    It is stored when the call returns and settles when the operation is done, as on Google: a
    second insert of the same name fails at once.
    """
    name = body.get("name", "")
    require_name(name)
    path = f"projects/{call.project}/{place}/{kind.collection}/{name}"
    sent = {key: value for key, value in tidy(body).items() if key not in _OUTPUT}
    with cloud.store.locked():
        require_new(cloud, path)
        record = kind.defaults | sent | identity(cloud, kind.kind, path, name)
        kind.prepare(cloud, call, path, record)
        save(cloud, kind, path, record)
    return path


def save(cloud: Cloud, kind: Kind, path: str, record: Json) -> None:
    """Store a resource with the fingerprints that its kind has."""
    if kind.labelled:
        stamp_labels(record)
    if kind.stamped:
        stamp(record)
    cloud.store.put(STORE, path, record)


def begin(
    cloud: Cloud,
    call: Call,
    kind: Kind,
    type_: str,
    path: str,
    effect_name: str = "compute.settle",
    step: str = "update",
) -> Json:
    """Start the operation of a change to the resource at `path`.

    The record has changed already; the operation only takes its time and tells `changed`.
    """
    work = Work(effect_name, {"path": path}, cloud.seconds(f"{kind.latency}.{step}"))
    return api.start(cloud, call, work, scope=_scope_of(path), kind=type_, target=path)


def replace(cloud: Cloud, call: Call, kind: Kind, type_: str, path: str, record: Json) -> Json:
    """Store a changed resource and answer the operation that changed it."""
    save(cloud, kind, path, record)
    return begin(cloud, call, kind, type_, path)


@effect("compute.settle")
def _settle(cloud: Cloud, path: str) -> None:
    """Finish creating or changing a resource.

    Disks and snapshots are CREATING until then.
    """
    record = cloud.store.get(STORE, path)
    if record is not None and record.get("status") == "CREATING":
        cloud.store.put(STORE, path, record | {"status": "READY"})
    changed.run(cloud, path)


@effect("compute.remove")
def _remove(cloud: Cloud, path: str) -> None:
    """Remove a deleted resource."""
    cloud.store.delete(STORE, path)
    changed.run(cloud, path)


def _require_also(cloud: Cloud, call: Call, kind: Kind) -> None:
    for permission in kind.also:
        require_permission(cloud, call, permission)


def _scope_of(path: str) -> str:
    parts = path.split("/")[2:4]
    return "/".join(parts) if parts[0] != "global" else "global"


def _places(cloud: Cloud, call: Call, kind: Kind) -> list[str]:
    """Return the scopes that an aggregated list shows, also those without a resource."""
    names = {"regions": list(catalog.regions()), "zones": catalog.zones()}
    every = call.flag("includeAllScopes")
    return ["global"] * every + [
        f"{scope}/{name}"
        for scope in (names if every else [kind.scope])
        for name in names[scope]
        if catalog.visible(cloud, call.project, name)
    ]


def changes(kind: Kind, verb: str, type_: str = "") -> Callable[[Edit], Edit]:
    """Register `edit(cloud, call, record)` for a method that changes a resource in place.

    `type_` is the operation's, where it is another than the verb.
    """

    def register(edit: Edit) -> Edit:
        @API.method(kind.method(verb), permission=kind.permission(verb))
        def handle(cloud: Cloud, call: Call) -> Json:
            path = kind.path(call)
            with cloud.store.locked():
                record = load(cloud, path)
                edit(cloud, call, record)
                save(cloud, kind, path, record)
            # Not under the store's lock: what hears of it may wait for a machine that calls APIs.
            return begin(cloud, call, kind, type_ or verb, path)

        return edit

    return register


# Fingerprints, so that a change based on an older state is refused.


def fingerprint(value: Any) -> str:
    """Return a short hash of `value`.

    Fingerprints are of the format `byte`: base64, here in the alphabet for URLs.
    """
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode()


def require_match(sent: str | None, actual: str | None, what: str) -> None:
    """Refuse a change that was made to an older state; `what` is `metadata`, `labels`, …"""
    if not same_bytes(sent, actual):
        if what == "labels":
            raise ApiError(412, "Labels fingerprint either invalid or resource labels have changed")
        raise ApiError(412, f"Supplied fingerprint does not match current {what} fingerprint.")


def stamp(record: Json) -> None:
    """Renew the fingerprint of a whole record."""
    record.pop("fingerprint", None)
    record["fingerprint"] = fingerprint(record)


def stamp_labels(record: Json) -> None:
    """Renew the fingerprint of a record's labels."""
    record["labelFingerprint"] = fingerprint(record.get("labels", {}))


# The users of a resource, which keep it from being deleted.

finders: Hook[[Cloud, str], list[str]] = Hook()
"""Finds the users, in other APIs, of the compute resource at a path."""


def holders(cloud: Cloud, path: str) -> list[str]:
    """Return paths of what keeps the resource at `path` from being deleted or written to.

    References are stored as full URLs, so a search of the records' text finds them all.
    """
    if path.split("/")[-2] == "snapshots":
        return []  # A disk does not need the snapshot that it was made from.
    # A Shared VPC's networks have users in other projects.
    shared = path.split("/")[-2] in ("networks", "subnetworks")
    within = "projects/" if shared else "/".join(path.split("/")[:2]) + "/"
    mentioning = cloud.store.mentioning(STORE, within, url_of(path))
    users = [[other for other in mentioning if other != path], *finders.run(cloud, path)]
    return [user for user in chain.from_iterable(users) if not _needs_nothing(cloud, user)]


def require_unused(cloud: Cloud, path: str) -> None:
    """Refuse to delete a resource that another one uses."""
    used_by = holders(cloud, path)
    if used_by:
        raise in_use(path, used_by[0])


def in_use(path: str, user: str) -> ApiError:
    """Return the 400 for a resource that `user` uses."""
    # Google's words have the singular in snake case: `instance_template`.
    kind = path.split("/")[-2].removesuffix("s").replace("addresse", "address")
    kind = re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", kind)
    message = f"The {kind} resource '{path}' is already being used by '{user}'"
    return ApiError(400, message, reason="resourceInUseByAnotherResource")


def _needs_nothing(cloud: Cloud, path: str) -> bool:
    # Routes and the subnets of an auto mode network go with what they belong to; a network lists
    # its subnets without needing them; a template only names what an instance of it will need; a
    # snapshot only names what it was made of.
    record = cloud.store.get(STORE, path) or {}
    collection = path.split("/")[-2]
    alone = ("routes", "networks", "instanceTemplates", "snapshots")
    return collection in alone or bool(record.get("_automatic"))
