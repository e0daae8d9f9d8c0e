"""Adds, deletes and recreates the instances of a group, and keeps their configs."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute.api import API
from localcloud.services.compute.groups import actions, lifecycle
from localcloud.services.compute.groups.records import (
    KIND,
    instance_path,
    load_group,
    member,
    save,
    template_of,
)
from localcloud.services.compute.links import last, shown
from localcloud.services.compute.resources import (
    begin,
    require_name,
    require_new,
    require_permission,
)

_UPDATE = KIND.permission("update")
_ACTIONS = {"deleteInstances": "DELETING", "recreateInstances": "RECREATING"}


def _changed(cloud: Cloud, call: Call, type_: str, path: str) -> Json:
    """Answer an operation that is done when the group knows what to do, not when it has done it."""
    return begin(cloud, call, KIND, type_, path)


def _chosen(cloud: Cloud, call: Call, path: str) -> list[str]:
    """Return the group's instances that the request names."""
    known = load_group(cloud, path)["_members"]
    chosen = [last(reference) for reference in call.body.get("instances", [])]
    for name in chosen:
        if name not in known:
            raise invalid(
                f"Invalid value for field 'instances': '{name}'. Instance is not a member of the "
                f"managed instance group '{path}'."
            )
    return chosen


@API.method("instanceGroupManagers.createInstances", permission=_UPDATE)
def create_instances(cloud: Cloud, call: Call) -> Json:
    """Add instances with names of the caller's own, which they keep however often they are made."""
    path = KIND.path(call)
    sent: list[Json] = call.body.get("instances", [])

    def edit(record: Record) -> None:
        for config in sent:
            require_name(config.get("name", ""))
            require_new(cloud, instance_path(path, config["name"]))
            if config["name"] in record["_members"]:
                raise invalid(f"The group has an instance '{config['name']}' already.")
        for config in sent:
            record["_members"][config["name"]] = member(template_of(record), "CREATING")
            record["_configs"][config["name"]] = _config(config)

    operation = _edit(cloud, call, "createInstances", path, edit)
    for config in sent:
        actions.begin(cloud, path, config["name"], "CREATING")
    return operation


def _config(sent: Json) -> Json:
    kept = sent.get("preservedState", {})
    for field in ("disks", "internalIPs", "externalIPs"):
        if kept.get(field):
            raise ApiError(501, f"the local cloud's groups preserve metadata, but no {field}")
    state = {"preservedState": {"metadata": kept["metadata"]}} if kept.get("metadata") else {}
    return {"name": sent["name"], "status": "EFFECTIVE", **state}


@API.method("instanceGroupManagers.deleteInstances", permission=_UPDATE)
@API.method("instanceGroupManagers.recreateInstances", permission=_UPDATE)
def act_on_instances(cloud: Cloud, call: Call) -> Json:
    """Delete instances, and the group gets smaller, or recreate them."""
    path, verb = KIND.path(call), call.method.name.partition(".")[2]
    chosen = _chosen(cloud, call, path)
    operation = _changed(cloud, call, verb, path)
    for name in chosen:
        actions.begin(cloud, path, name, _ACTIONS[verb])
    return operation


@API.method("instanceGroupManagers.abandonInstances", permission=_UPDATE)
def abandon_instances(cloud: Cloud, call: Call) -> Json:
    """Take instances out of the group and leave them as they are."""
    path = KIND.path(call)
    for name in _chosen(cloud, call, path):
        actions.forget(cloud, path, name)
    return _changed(cloud, call, "abandonInstances", path)


@API.method("instanceGroupManagers.applyUpdatesToInstances", permission=_UPDATE)
def apply_updates(cloud: Cloud, call: Call) -> Json:
    """Let instances follow the group's template now."""
    path = KIND.path(call)
    every = bool(call.body.get("allInstances"))
    chosen = list(load_group(cloud, path)["_members"]) if every else _chosen(cloud, call, path)
    if call.body.get("minimalAction") == "REPLACE":
        for name in chosen:
            actions.begin(cloud, path, name, "RECREATING")
    else:
        lifecycle.roll(cloud, path, chosen)
    return _changed(cloud, call, "applyUpdatesToInstances", path)


@API.method("instanceGroupManagers.resize", permission=_UPDATE)
def resize_group(cloud: Cloud, call: Call) -> Json:
    """Make the group larger or smaller."""
    path = KIND.path(call)
    record = load_group(cloud, path)
    size = call.number("size") or 0
    if size < 0:
        raise invalid(f"Invalid value for field 'size': '{size}'. Must not be negative.")
    operation = _changed(cloud, call, "resize", path)
    staying = [name for name, known in record["_members"].items() if known["action"] != "DELETING"]
    for name in staying[size:]:
        actions.begin(cloud, path, name, "DELETING")
    lifecycle.grow(cloud, path, max(0, size - len(staying)))
    return operation


@API.method("instanceGroupManagers.setInstanceTemplate", permission=_UPDATE)
def set_template(cloud: Cloud, call: Call) -> Json:
    """Give later instances another template."""
    record = load_group(cloud, KIND.path(call))
    versions = [{"instanceTemplate": call.body.get("instanceTemplate", "")}]
    body = {"versions": versions, "fingerprint": record["fingerprint"]}
    return lifecycle.change(cloud, call, body)


@API.method("instanceGroupManagers.listPerInstanceConfigs", permission=KIND.permission("get"))
def list_configs(cloud: Cloud, call: Call) -> Json:
    """Return what the group keeps of each instance that has a name of the caller's own."""
    configs = load_group(cloud, KIND.path(call))["_configs"]
    return shown(call, {"items": [configs[name] for name in sorted(configs)]} if configs else {})


@API.method("instanceGroupManagers.updatePerInstanceConfigs", permission=_UPDATE)
@API.method("instanceGroupManagers.patchPerInstanceConfigs", permission=_UPDATE)
def update_configs(cloud: Cloud, call: Call) -> Json:
    """Replace instances' configs, which take effect when the instances are recreated."""
    require_permission(cloud, call, "compute.disks.use")
    path = KIND.path(call)

    def edit(record: Record) -> None:
        for sent in call.body.get("perInstanceConfigs", []):
            if sent.get("name") not in record["_members"]:
                raise invalid(f"The group has no instance '{sent.get('name')}'.")
            record["_configs"][sent["name"]] = _config(sent)

    return _edit(cloud, call, "updatePerInstanceConfigs", path, edit)


@API.method("instanceGroupManagers.deletePerInstanceConfigs", permission=_UPDATE)
def delete_configs(cloud: Cloud, call: Call) -> Json:
    """Delete instances' configs; the instances stay."""
    path = KIND.path(call)

    def edit(record: Record) -> None:
        for name in call.body.get("names", []):
            if record["_configs"].pop(name, None) is None:
                raise invalid(f"There is no per-instance config '{name}'.")

    return _edit(cloud, call, "deletePerInstanceConfigs", path, edit)


def _edit(cloud: Cloud, call: Call, type_: str, path: str, edit: Callable[[Record], None]) -> Json:
    with cloud.store.locked():
        record = load_group(cloud, path)
        edit(record)
        save(cloud, path, record)
    return _changed(cloud, call, type_, path)
