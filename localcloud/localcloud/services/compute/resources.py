"""Serves the methods that plain compute resources have in common."""

from __future__ import annotations

import re
from collections.abc import Callable

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid, not_found
from localcloud.core.hooks import Hook
from localcloud.core.operations import Work, effect
from localcloud.core.store import Record
from localcloud.services.compute import catalog, operations, usage
from localcloud.services.compute.api import API, STORE
from localcloud.services.compute.fingerprints import require_match, stamp, stamp_labels
from localcloud.services.compute.kinds import Change, Kind, place_of, tidy
from localcloud.services.compute.links import shown, url_of
from localcloud.services.compute.paging import aggregate, page

_NAME = re.compile(r"(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)")
Edit = Callable[[Cloud, Call, Record], None]
changed: Hook[[Cloud, str], None] = Hook()
"""Runs when the resource at a path was created, changed or removed."""
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
        raise invalid(
            f"Invalid value for field 'resource.name': '{name}'. Must be a match of regex "
            f"'{_NAME.pattern}'"
        )


def require_new(cloud: Cloud, path: str) -> None:
    """Refuse a name that is taken."""
    if cloud.store.get(STORE, path) is not None:
        raise ApiError(409, f"The resource '{path}' already exists", reason="alreadyExists")


def require_permission(cloud: Cloud, call: Call, permission: str) -> None:
    """Refuse a caller who lacks `permission` in the project."""
    access.require(cloud, call.principal, permission, [f"projects/{call.project}"])


def identity(cloud: Cloud, kind: str, path: str, name: str) -> Json:
    """Return the fields that every resource has."""
    record: Json = {
        "kind": kind,
        "id": str(cloud.operations.number()),
        "creationTimestamp": rfc3339(cloud.clock.now()),
        "name": name,
        "selfLink": url_of(path),
    }
    place = path.split("/")[2:4]
    if place[0] in ("zones", "regions"):
        record[place[0].removesuffix("s")] = url_of("/".join(path.split("/")[:4]))
    return record


def serve(kind: Kind) -> None:
    """Register the methods of a kind, as far as they are plain."""

    def insert(cloud: Cloud, call: Call) -> Json:
        _require_also(cloud, call, kind)
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
            if kind.removal == "compute.remove":
                usage.require_unused(cloud, path)
                kind.remove(cloud, path, record)
        return begin(cloud, call, kind, "delete", path, kind.removal, "delete")

    API.method(kind.method("insert"), permission=kind.permission("create"))(insert)
    API.method(kind.method("get"), permission=kind.permission("get"))(get)
    API.method(kind.method("delete"), permission=kind.permission("delete"))(delete)
    serve_lists(kind)
    if kind.change is not None:
        _serve_patch(kind, kind.change)
    if kind.labelled:
        _serve_labels(kind)


def serve_lists(kind: Kind, view: Callable[[Record], Json] = dict) -> None:
    """Register `list` and, outside the global scope, `aggregatedList`.

    Args:
        kind: whose resources are listed.
        view: gets a stored record and returns what is shown of it.
    """

    def list_(cloud: Cloud, call: Call) -> Json:
        path = f"projects/{call.project}/{place_of(call)}/{kind.collection}"
        records = [view(record) for _, record in cloud.store.items(STORE, f"{path}/")]
        return page(call, f"{kind.kind}List", path, records)

    def aggregated(cloud: Cloud, call: Call) -> Json:
        found: dict[str, list[Json]] = {place: [] for place in _places(cloud, call, kind)}
        for path, record in cloud.store.items(STORE, f"projects/{call.project}/{kind.scope}/"):
            if path.split("/")[-2] == kind.collection:
                found.setdefault(_scope_of(path), []).append(view(record))
        path = f"projects/{call.project}/aggregated/{kind.collection}"
        return aggregate(call, f"{kind.kind}AggregatedList", path, kind.collection, found)

    API.method(kind.method("list"), permission=kind.permission("list"))(list_)
    if kind.scope != "global":
        API.method(kind.method("aggregatedList"), permission=kind.permission("list"))(aggregated)


def add(cloud: Cloud, call: Call, kind: Kind, place: str, body: Json) -> str:
    """Store a new resource in a scope (such as `zones/z`), checked and completed; its path."""
    name = body.get("name", "")
    require_name(name)
    path = f"projects/{call.project}/{place}/{kind.collection}/{name}"
    sent = {key: value for key, value in tidy(body).items() if key not in _OUTPUT}
    with cloud.store.locked():
        require_new(cloud, path)
        record = kind.defaults | sent | identity(cloud, kind.kind, path, name)
        kind.prepare(cloud, call, path, record)
        restamp(kind, record)
        cloud.store.put(STORE, path, record)
    return path


def restamp(kind: Kind, record: Json) -> None:
    """Renew the fingerprints that a kind has."""
    if kind.labelled:
        stamp_labels(record)
    if kind.stamped:
        stamp(record)


def begin(
    cloud: Cloud,
    call: Call,
    kind: Kind,
    type_: str,
    path: str,
    effect_name: str = "compute.settle",
    step: str = "update",
) -> Json:
    """Start the operation of a change to the resource at `path`."""
    work = Work(effect_name, {"path": path}, cloud.seconds(f"{kind.latency}.{step}"))
    return operations.start(cloud, call, work, scope=_scope_of(path), kind=type_, target=path)


def replace(cloud: Cloud, call: Call, kind: Kind, type_: str, path: str, record: Json) -> Json:
    """Store a changed resource and answer the operation that changed it."""
    restamp(kind, record)
    cloud.store.put(STORE, path, record)
    return begin(cloud, call, kind, type_, path)


@effect("compute.settle")
def _settle(cloud: Cloud, path: str) -> None:
    """Make a created or changed resource ready for use."""
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


def _serve_patch(kind: Kind, change: Change) -> None:
    def patch(cloud: Cloud, call: Call) -> Json:
        _require_also(cloud, call, kind)
        path = kind.path(call)
        with cloud.store.locked():
            before = load(cloud, path)
            if kind.stamped:
                require_match(call.body.get("fingerprint"), before["fingerprint"], "resource")
            fresh = {key: value for key, value in call.body.items() if key not in _OUTPUT}
            after = tidy(before | fresh)
            type_ = change(cloud, call, before, after) or "patch"
            return replace(cloud, call, kind, type_, path, after)

    API.method(kind.method("patch"), permission=kind.permission("update"))(patch)


def _serve_labels(kind: Kind) -> None:
    @changes(kind, "setLabels")
    def set_labels(cloud: Cloud, call: Call, record: Record) -> None:
        require_match(call.body.get("labelFingerprint"), record["labelFingerprint"], "labels")
        record["labels"] = call.body.get("labels", {})


def changes(kind: Kind, verb: str, type_: str = "") -> Callable[[Edit], Edit]:
    """Register `edit(cloud, call, record)` for a method that changes a resource in place.

    Args:
        kind: of the resource.
        verb: of the method and its permission, such as `resize`.
        type_: of the operation, where it is another than the verb.
    """

    def register(edit: Edit) -> Edit:
        @API.method(kind.method(verb), permission=kind.permission(verb))
        def handle(cloud: Cloud, call: Call) -> Json:
            path = kind.path(call)
            with cloud.store.locked():
                record = load(cloud, path)
                edit(cloud, call, record)
                return replace(cloud, call, kind, type_ or verb, path, record)

        return edit

    return register
