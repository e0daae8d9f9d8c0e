"""Managed instance groups at work: their records, and how they create and recreate instances.

The emulator's own part of a record: `_members` (by name, see `member`), `_configs` (per-instance
configs by name), `_creator` (as whom the group acts; on Google a service agent with the same
rights), `_watch` (the number of the current chain of health checks) and `_deleting`.
"""

import io
import threading
from collections import defaultdict

from localcloud.core.call import Call, Json, Principal, Request
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import document
from localcloud.core.errors import ApiError, not_found
from localcloud.core.store import Record, Work, effect
from localcloud.services.compute import api, instance_properties, instances
from localcloud.services.compute.api import STORE, path_from
from localcloud.services.compute.instance_records import ended
from localcloud.services.compute.resources import Kind, fingerprint, load, tidy

COLLECTION = "instanceGroupManagers"
_SETTINGS = (
    *("autoHealingPolicies", "baseInstanceName", "description", "instanceLifecyclePolicy"),
    *("targetSize", "updatePolicy", "versions"),
)
# A group acts once at a time: its deletion waits for an instance that is being made.
_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)


# What a group knows of an instance that it has just made, or will make.
_FRESH: Record = {"errors": [], "health": "UNKNOWN", "streak": 0}
GROUP = Kind(collection=COLLECTION, parameter="instanceGroupManager", scope="zones")


def load_group(cloud: Cloud, path: str) -> Record:
    """Return the group at `path`; 404 when there is none or it is being deleted."""
    record = load(cloud, path)
    if record.get("_deleting"):
        raise not_found(path)
    return record


def instance_path(group: str, name: str) -> str:
    """Return the path of an instance of a group."""
    return f"{group.partition(f'/{COLLECTION}/')[0]}/instances/{name}"


def group_lock(group: str) -> threading.RLock:
    """Return the lock to hold while instances of a group are made or deleted.

    It is not the store's: a machine that boots or halts may take long, and calls APIs in that time.
    """
    return _locks[group]


def save_group(cloud: Cloud, path: str, record: Record) -> None:
    """Store a group; its fingerprint covers the settings that a user makes."""
    record["targetSize"] = sum(
        member["action"] != "DELETING" for member in record["_members"].values()
    )
    record["fingerprint"] = fingerprint({name: record.get(name) for name in _SETTINGS})
    cloud.store.put(STORE, path, record)


def member(template: str, action: str) -> Record:
    """Return what a group first knows of an instance that it makes from the template at a URL.

    `since` is when it was made, `streak` how many checks in a row said the opposite of `health`.
    """
    return {"template": template, "action": action, "since": 0.0, **_FRESH}


def note(cloud: Cloud, group: str, name: str, **fields: object) -> None:
    """Change what a group knows of an instance, if both are still there.

    Actions and health checks run in threads of their own; a group may be deleted in between.
    """
    with cloud.store.locked():
        record = cloud.store.get(STORE, group)
        if record is not None and name in record["_members"]:
            record["_members"][name] |= fields
            save_group(cloud, group, record)


def template_of(record: Record) -> str:
    """Return the URL of the template that new instances of the group are made from."""
    template: str = record["versions"][0]["instanceTemplate"]
    return template


# What a group does with its instances.

# Seconds until a group notices that an instance has ended, and until it tries again to create one.
# They hold without latencies too: an instance that ends at once would be recreated without a pause.
_NOTICE = 1.0
_RETRY = 30.0
_OPERATIONS = {
    "CREATING": ("insert", "compute.create"),
    "RECREATING": ("compute.instances.repair.recreateInstance", "compute.create"),
    "DELETING": ("delete", "compute.delete"),
}


def act(cloud: Cloud, group: str, name: str, action: str, *, pause: float = 0.0) -> None:
    """Let the group act on an instance, after `pause` seconds and the time that it takes.

    It is an operation, so that what is still to come survives a restart of the local cloud.
    """
    note(cloud, group, name, action=action)
    kind, latency = _OPERATIONS[action]
    seconds = pause + cloud.seconds(latency)
    work = Work("compute.group.act", {"group": group, "name": name}, seconds)
    target, zone = instance_path(group, name), group.partition(f"/{COLLECTION}/")[0]
    api.start_in(cloud, zone, work, kind=kind, target=target, user=_creator(cloud, group).email)


@effect("compute.group.act")
def _act(cloud: Cloud, group: str, name: str) -> None:
    with group_lock(group):
        record = cloud.store.get(STORE, group) or {"_members": {}, "_deleting": True}
        known = record["_members"].get(name)
        if record.get("_deleting") or known is None or known["action"] == "NONE":
            return
        path = instance_path(group, name)
        if known["action"] == "DELETING":
            instances.delete(cloud, path)
            forget(cloud, group, name)
            return
        try:
            _make(cloud, group, record, name)
        # The instance stays in the group, with its error for `listErrors`, and the group tries
        # again.
        except ApiError as error:
            entry = {"code": error.reason, "message": error.message}
            note(cloud, group, name, errors=[entry | {"at": cloud.clock.now()}])
            act(cloud, group, name, known["action"], pause=_RETRY)
            raise


def _make(cloud: Cloud, group: str, record: Record, name: str) -> None:
    path, known = instance_path(group, name), record["_members"][name]
    # To recreate is to delete and insert: name, disks and addresses are free in between.
    if cloud.store.get(STORE, path) is not None:
        instances.delete(cloud, path)
    # "If configuration updates are available, they are not forcefully applied during repair" by
    # default.
    if record["instanceLifecyclePolicy"]["forceUpdateOnRepair"] == "YES":
        known["template"] = template_of(record)
    template = cloud.store.get(STORE, path_from(known["template"]))
    if template is None:
        raise not_found(path_from(known["template"]))
    body = instance_properties.body_of(template, name)
    kept = record["_configs"].get(name, {}).get("preservedState", {}).get("metadata", {})
    body["metadata"] = _metadata(body["metadata"], group, known["template"], kept)
    instances.add(cloud, _call(cloud, group), tidy(body))
    instances.create(cloud, path)
    fresh = {**_FRESH, "template": known["template"]}
    note(cloud, group, name, action="NONE", since=cloud.clock.now(), **fresh)


def _metadata(sent: Json, group: str, template: str, kept: dict[str, str]) -> Json:
    """Return a template's metadata, with what Google adds for the instances of a group."""
    added = {"created-by": group, "instance-template": path_from(template), **kept}
    items = [item for item in sent.get("items", []) if item["key"] not in added]
    return {"items": items + [{"key": key, "value": value} for key, value in added.items()]}


def forget(cloud: Cloud, group: str, name: str) -> None:
    """Remove an instance from its group's record."""
    with cloud.store.locked():
        record = cloud.store.get(STORE, group)
        if record is not None:
            record["_members"].pop(name, None)
            record["_configs"].pop(name, None)
            save_group(cloud, group, record)


def _creator(cloud: Cloud, group: str) -> Principal:
    return Principal(str(load_group(cloud, group)["_creator"]))


def _call(cloud: Cloud, group: str) -> Call:
    """Return a call as if the group's creator inserted an instance.

    So all checks of an insertion hold for the group too, quota and the right to use the account
    among them. On Google the service agent of Compute Engine acts.
    """
    parts = group.split("/")
    request = Request("POST", "compute.googleapis.com", group, {}, {}, io.BytesIO(), 0)
    method = document("compute", "v1").methods["instances.insert"]
    where = {"project": parts[1], "zone": parts[3]}
    return Call(request, method, where, _creator(cloud, group))


@ended
def _ended(cloud: Cloud, instance: str) -> None:
    """Recreate an instance that ended without its group's doing."""
    zone, _, name = instance.partition("/instances/")
    for group, record in cloud.store.items(STORE, f"{zone}/{COLLECTION}/"):
        repairs = record["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "REPAIR"
        idle = name in record["_members"] and record["_members"][name]["action"] == "NONE"
        if repairs and idle and not record.get("_deleting"):
            act(cloud, group, name, "RECREATING", pause=_NOTICE)
