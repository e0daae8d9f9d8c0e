"""What a group does with its instances: it creates, recreates and deletes them."""

from __future__ import annotations

import io

from localcloud.core.call import Call, Json, Request
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import document
from localcloud.core.errors import ApiError
from localcloud.core.operations import Work, effect
from localcloud.core.store import Record
from localcloud.core.tokens import Principal
from localcloud.services.compute import instance_templates, operations
from localcloud.services.compute.api import STORE
from localcloud.services.compute.groups.records import (
    COLLECTION,
    groups_of,
    instance_path,
    load_group,
    lock,
    note,
    save,
    template_of,
)
from localcloud.services.compute.instances import lifecycle
from localcloud.services.compute.instances.records import ended
from localcloud.services.compute.kinds import tidy
from localcloud.services.compute.links import last, path_from

# Seconds until a group notices that an instance has ended, and until it tries again to create one.
# They hold without latencies too: an instance that ends at once would be recreated without a pause.
_NOTICE = 1.0
_RETRY = 30.0
_OPERATIONS = {
    "CREATING": ("insert", "compute.create"),
    "RECREATING": ("compute.instances.repair.recreateInstance", "compute.create"),
    "DELETING": ("delete", "compute.delete"),
}


def begin(cloud: Cloud, group: str, name: str, action: str, *, pause: float = 0.0) -> None:
    """Let the group act on an instance, after `pause` seconds and the time that it takes."""
    note(cloud, group, name, action=action)
    kind, latency = _OPERATIONS[action]
    seconds = pause + cloud.seconds(latency)
    work = Work("compute.group.act", {"group": group, "name": name}, seconds)
    target, zone = instance_path(group, name), group.partition(f"/{COLLECTION}/")[0]
    operations.start_in(cloud, zone, work, kind=kind, target=target, user=_creator(cloud, group))


@effect("compute.group.act")
def _act(cloud: Cloud, group: str, name: str) -> None:
    with lock(group):
        record = cloud.store.get(STORE, group) or {"_members": {}, "_deleting": True}
        known = record["_members"].get(name)
        if record.get("_deleting") or known is None or known["action"] == "NONE":
            return
        path = instance_path(group, name)
        if known["action"] == "DELETING":
            lifecycle.delete(cloud, path)
            forget(cloud, group, name)
            return
        try:
            _make(cloud, group, record, name)
        except ApiError as error:
            said = {"code": error.reason, "message": error.message}
            note(cloud, group, name, errors=[said | {"at": cloud.clock.now()}])
            begin(cloud, group, name, known["action"], pause=_RETRY)
            raise


def _make(cloud: Cloud, group: str, record: Record, name: str) -> None:
    path, known = instance_path(group, name), record["_members"][name]
    if cloud.store.get(STORE, path) is not None:
        lifecycle.delete(cloud, path)
    if record["instanceLifecyclePolicy"]["forceUpdateOnRepair"] == "YES":
        known["template"] = template_of(record)
    template = cloud.store.get(STORE, path_from(known["template"]))
    if template is None:
        raise ApiError(404, f"The resource '{path_from(known['template'])}' was not found")
    body = instance_templates.body_of(template, name)
    kept = record["_configs"].get(name, {}).get("preservedState", {}).get("metadata", {})
    body["metadata"] = _metadata(body["metadata"], group, known["template"], kept)
    call = _call(cloud, group)
    lifecycle.add(cloud, call, tidy(body))
    lifecycle.create(cloud, path)
    now = cloud.clock.now()
    fresh = {"errors": [], "health": "UNKNOWN", "streak": 0, "template": known["template"]}
    note(cloud, group, name, action="NONE", since=now, **fresh)


def _metadata(sent: Json, group: str, template: str, kept: dict[str, str]) -> Json:
    """Return a template's metadata, with what Google adds for the instances of a group."""
    added = {"created-by": group, "instance-template": path_from(template), **kept}
    items = [item for item in sent.get("items", []) if item["key"] not in added]
    return {"items": items + [{"key": key, "value": value} for key, value in added.items()]}


def forget(cloud: Cloud, group: str, name: str) -> None:
    """Forget an instance that has left its group."""
    with cloud.store.locked():
        record = cloud.store.get(STORE, group)
        if record is not None:
            record["_members"].pop(name, None)
            record["_configs"].pop(name, None)
            save(cloud, group, record)


def _creator(cloud: Cloud, group: str) -> str:
    return Principal(str(load_group(cloud, group)["_creator"])).email


def _call(cloud: Cloud, group: str) -> Call:
    """Return a call as if the group's creator inserted an instance."""
    parts = group.split("/")
    request = Request("POST", "compute.googleapis.com", group, {}, {}, io.BytesIO(), 0)
    return Call(
        request,
        document("compute", "v1").methods["instances.insert"],
        {"project": parts[1], "zone": parts[3]},
        Principal(str(load_group(cloud, group)["_creator"])),
    )


@ended
def _ended(cloud: Cloud, instance: str) -> None:
    """Recreate an instance that ended without its group's doing."""
    for group, record in groups_of(cloud, instance):
        repairs = record["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "REPAIR"
        idle = record["_members"][last(instance)]["action"] == "NONE"
        if repairs and idle and not record.get("_deleting"):
            begin(cloud, group, last(instance), "RECREATING", pause=_NOTICE)
