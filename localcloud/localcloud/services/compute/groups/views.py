"""Groups as Google shows them: what they are, how their instances are, what went wrong."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.store import Record
from localcloud.services.compute.api import API, STORE
from localcloud.services.compute.groups.records import (
    COLLECTION,
    KIND,
    instance_path,
    load_group,
    template_of,
)
from localcloud.services.compute.kinds import place_of
from localcloud.services.compute.links import path_from, shown, url_of
from localcloud.services.compute.paging import page
from localcloud.services.compute.resources import serve_lists

_ACTIONS = (
    *("none", "creating", "creatingWithoutRetries", "recreating", "deleting", "abandoning"),
    *("restarting", "refreshing", "verifying"),
)


def whole(record: Record) -> Json:
    """Return a group with what follows from its instances."""
    members = record["_members"].values()
    counts = dict.fromkeys(_ACTIONS, 0)
    for member in members:
        counts[str(member["action"]).lower()] += 1
    reached = all(member["template"] == template_of(record) for member in members)
    stateful = bool(record["_configs"])
    status = {
        "isStable": counts["none"] == len(members),
        "versionTarget": {"isReached": reached},
        "allInstancesConfig": {"effective": True},
        "stateful": {
            "hasStatefulConfig": stateful,
            "perInstanceConfigs": {"allEffective": True},
        },
    }
    return record | {"currentActions": counts, "status": status}


@API.method("instanceGroupManagers.get", permission=KIND.permission("get"))
def get_group(cloud: Cloud, call: Call) -> Json:
    """Describe a managed instance group."""
    return shown(call, whole(load_group(cloud, KIND.path(call))))


serve_lists(KIND, whole)


@API.method("instanceGroupManagers.listManagedInstances", permission=KIND.permission("get"))
def list_managed_instances(cloud: Cloud, call: Call) -> Json:
    """Return what the group does with each of its instances, and how they are."""
    group = KIND.path(call)
    record = load_group(cloud, group)
    found = [_managed(cloud, group, record, name) for name in sorted(record["_members"])]
    return shown(call, {"managedInstances": found} if found else {})


def _managed(cloud: Cloud, group: str, record: Record, name: str) -> Json:
    member, path = record["_members"][name], instance_path(group, name)
    instance = cloud.store.get(STORE, path)
    managed: Json = {
        "instance": url_of(path),
        "name": name,
        "currentAction": member["action"],
        "version": {"instanceTemplate": member["template"]},
        "lastAttempt": {},
    }
    if instance is not None:
        managed |= {"id": instance["id"], "instanceStatus": instance["status"]}
    if member["errors"]:
        plain = [{key: error[key] for key in ("code", "message")} for error in member["errors"]]
        managed["lastAttempt"] = {"errors": {"errors": plain}}
    policies = record.get("autoHealingPolicies", [])
    if policies:
        found = {"healthCheck": policies[0]["healthCheck"], "detailedHealthState": member["health"]}
        managed["instanceHealth"] = [found]
    kept = record["_configs"].get(name, {}).get("preservedState")
    if kept:
        managed["preservedStateFromConfig"] = kept
    return managed


@API.method("instanceGroupManagers.listErrors", permission=KIND.permission("get"))
def list_errors(cloud: Cloud, call: Call) -> Json:
    """Return why the group could not have its instances."""
    group = KIND.path(call)
    record = load_group(cloud, group)
    items = [
        {
            "error": {"code": error["code"], "message": error["message"]},
            "instanceActionDetails": {
                "action": member["action"],
                "instance": url_of(instance_path(group, name)),
                "version": {"instanceTemplate": member["template"]},
            },
            "timestamp": rfc3339(error["at"]),
        }
        for name, member in sorted(record["_members"].items())
        for error in member["errors"]
    ]
    return shown(call, {"items": items} if items else {})


def _plain_group(record: Record) -> Json:
    """Return the instance group that a managed group manages."""
    template = record["_network"]
    return {
        "kind": "compute#instanceGroup",
        "id": str(int(record["id"]) + 1),
        "creationTimestamp": record["creationTimestamp"],
        "name": record["name"],
        "description": f"This instance group is controlled by Instance Group Manager "
        f"'{record['name']}'. To modify instances in this group, use the Instance Group Manager "
        "API: https://cloud.google.com/compute/docs/reference/latest/instanceGroupManagers",
        "network": template["network"],
        "subnetwork": template["subnetwork"],
        "size": len(record["_members"]),
        "zone": record["zone"],
        "selfLink": record["instanceGroup"],
    }


def _managing(cloud: Cloud, call: Call) -> tuple[str, Record]:
    zone = f"projects/{call.project}/{place_of(call)}"
    group = f"{zone}/{COLLECTION}/{call.params['instanceGroup']}"
    return group, load_group(cloud, group)


@API.method("instanceGroups.get", permission="compute.instanceGroups.get")
def get_plain_group(cloud: Cloud, call: Call) -> Json:
    """Describe the instance group of a managed one."""
    return shown(call, _plain_group(_managing(cloud, call)[1]))


@API.method("instanceGroups.list", permission="compute.instanceGroups.list")
def list_plain_groups(cloud: Cloud, call: Call) -> Json:
    """List the instance groups of a zone; all of them are managed."""
    zone = f"projects/{call.project}/{place_of(call)}"
    records = [
        _plain_group(record) for _, record in cloud.store.items(STORE, f"{zone}/{COLLECTION}/")
    ]
    return page(call, "compute#instanceGroupList", f"{zone}/instanceGroups", records)


@API.method("instanceGroups.listInstances", permission="compute.instanceGroups.list")
def list_instances(cloud: Cloud, call: Call) -> Json:
    """List the instances of a group with their states."""
    group, record = _managing(cloud, call)
    found = []
    only_running = call.body.get("instanceState") == "RUNNING"
    for name in sorted(record["_members"]):
        instance = cloud.store.get(STORE, instance_path(group, name))
        running = instance is not None and instance["status"] == "RUNNING"
        if instance is not None and (running or not only_running):
            found.append({"instance": instance["selfLink"], "status": instance["status"]})
    path = f"{path_from(record['instanceGroup'])}/listInstances"
    return page(call, "compute#instanceGroupsListInstances", path, found)
