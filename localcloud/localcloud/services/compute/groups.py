"""Managed instance groups: their methods, and how Google shows them."""

import re
from collections.abc import Callable
from typing import Any

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record, effect
from localcloud.services.compute import api, health_checks, instances, resources
from localcloud.services.compute import group_actions as actions
from localcloud.services.compute import instance_properties as properties_of
from localcloud.services.compute.api import API, STORE, last, path_from, path_of, shown, url_of
from localcloud.services.compute.group_actions import COLLECTION, GROUP, load_group

_BASE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,57})")
_LONGEST_DELAY = 3600
_LETTERS = "0123456789bcdfghjklmnpqrstvwxz"
# The defaults of the discovery document; with one instance a surge of one is all there is.
_UPDATES: Json = {
    "type": "OPPORTUNISTIC",
    "minimalAction": "REPLACE",
    "replacementMethod": "SUBSTITUTE",
    "maxSurge": {"fixed": 1, "calculated": 1},
    "maxUnavailable": {"fixed": 1, "calculated": 1},
}
# "REPAIR (default): MIG automatically repairs a failed VM by recreating it", also one whose health
# check fails.
_REPAIRS: Json = {
    "defaultActionOnFailure": "REPAIR",
    "forceUpdateOnRepair": "NO",
    "onFailedHealthCheck": "DEFAULT_ACTION",
}
# Fields that Google has and the local cloud lacks; they are refused, not ignored.
_ABSENT = (
    *("allInstancesConfig", "statefulPolicy", "targetPools", "targetSuspendedSize"),
    *("targetStoppedSize", "distributionPolicy", "instanceFlexibilityPolicy", "namedPorts"),
)


@API.method("instanceGroupManagers.insert", permission=GROUP.permission("create"))
def insert_group(cloud: Cloud, call: Call) -> Json:
    """Create a group with its first instances.

    The operation is done before they run: clients wait for `status.isStable`, as the provider does
    with `waitForInstances`.
    """
    name = call.body.get("name", "")
    resources.require_name(name)
    resources.require_permission(cloud, call, "compute.instances.create")
    zone = f"projects/{call.project}/{resources.place_of(call)}"
    path = f"{zone}/{GROUP.collection}/{name}"
    body = resources.tidy(call.body)
    size = int(body.pop("targetSize", 0))
    with cloud.store.locked():
        resources.require_new(cloud, path)
        record: Record = {
            "standbyPolicy": {"initialDelaySec": 0, "mode": "MANUAL"},
            "listManagedInstancesResults": "PAGELESS",
            **{key: value for key, value in body.items() if _is_set(value)},
            **resources.identity(cloud, GROUP.kind, path, name),
            "instanceGroup": url_of(f"{zone}/instanceGroups/{name}"),
            "targetSuspendedSize": 0,
            "targetStoppedSize": 0,
            "_creator": call.principal.member,
            "_members": {},
            "_configs": {},
        }
        _complete(cloud, call, record)
        if size and not record["baseInstanceName"]:
            raise api.wrong_value("resource.baseInstanceName", "")
        actions.save_group(cloud, path, record)
    grow(cloud, path, size)
    health_checks.watch_group(cloud, path)
    return resources.begin(cloud, call, GROUP, "insert", path, "compute.settle", "create")


def grow(cloud: Cloud, path: str, size: int) -> None:
    """Add `size` instances with generated names.

    The base name with four characters at random on Google; here they count, so that two are never
    the same.
    """
    for _ in range(size):
        with cloud.store.locked():
            record = load_group(cloud, path)
            number, count = cloud.operations.number(), len(_LETTERS)
            suffix = "".join(_LETTERS[number // count**place % count] for place in range(4))
            name = f"{record['baseInstanceName']}-{suffix}"
            record["_members"][name] = actions.member(actions.template_of(record), "CREATING")
            actions.save_group(cloud, path, record)
        actions.act(cloud, path, name, "CREATING")


def _is_set(value: Any) -> bool:
    """Return whether a setting says anything: the provider sends empty groups for unset ones."""
    if isinstance(value, dict):
        return any(_is_set(child) for child in value.values())
    return value not in (None, [], "")


# Called for a new group and for a changed one: what it fills in must not depend on what the group
# was.
def _complete(cloud: Cloud, call: Call, record: Record) -> None:
    for field in _ABSENT:
        if _is_set(record.get(field)) and record[field] != 0:
            raise ApiError(501, f"the local cloud's managed instance groups have no {field}")
    record.setdefault("baseInstanceName", record["name"])
    if not _BASE_NAME.fullmatch(record["baseInstanceName"]):
        why = f"Must be a match of regex '{_BASE_NAME.pattern}'"
        raise api.wrong_value("resource.baseInstanceName", record["baseInstanceName"], why)
    _complete_template(cloud, call, record)
    record["updatePolicy"] = _UPDATES | record.get("updatePolicy", {})
    record["instanceLifecyclePolicy"] = _REPAIRS | record.get("instanceLifecyclePolicy", {})
    if record["updatePolicy"]["minimalAction"] != "REPLACE":
        raise ApiError(501, "the local cloud's groups update their instances by REPLACE only")
    if record["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "DELETE":
        raise ApiError(501, "the local cloud's groups repair instances that fail, or do nothing")
    _complete_healing(cloud, call, record)


# `instanceTemplate` is the older name of the only version's template; Google shows both. The
# account is checked now, while the caller who names it is known.
def _complete_template(cloud: Cloud, call: Call, record: Record) -> None:
    versions = record.get("versions") or [{"instanceTemplate": record.get("instanceTemplate", "")}]
    if len(versions) > 1:
        raise ApiError(501, "the local cloud's managed instance groups have one version")
    reference = versions[0].get("instanceTemplate", "")
    if not reference:
        raise invalid("Required field 'resource.instanceTemplate' not specified")
    path = properties_of.require_template(cloud, call, reference)
    properties = resources.load(cloud, path)["properties"]
    properties_of.service_accounts(cloud, call, properties.get("serviceAccounts", []))
    versions[0]["instanceTemplate"] = record["instanceTemplate"] = url_of(path)
    record["versions"] = versions


# Google takes one policy at most: "You can specify only one value" (the discovery document).
def _complete_healing(cloud: Cloud, call: Call, record: Record) -> None:
    policies = record.get("autoHealingPolicies", [])
    if len(policies) > 1:
        raise invalid("Invalid value for field 'resource.autoHealingPolicies': at most one.")
    for policy in policies:
        path = path_of(policy.get("healthCheck", ""), call.project)
        resources.load(cloud, path)
        resources.require_permission(cloud, call, "compute.healthChecks.useReadOnly")
        policy["healthCheck"] = url_of(path)
        if not 0 <= policy.get("initialDelaySec", 0) <= _LONGEST_DELAY:
            field = "resource.autoHealingPolicies[0].initialDelaySec"
            why = f"Must be between 0 and {_LONGEST_DELAY}."
            raise api.wrong_value(field, policy["initialDelaySec"], why)


@API.method("instanceGroupManagers.patch", permission=GROUP.permission("update"))
@API.method("instanceGroupManagers.setInstanceTemplate", permission=GROUP.permission("update"))
def change(cloud: Cloud, call: Call) -> Json:
    """Change a group, or only the template of its future instances.

    Its instances follow according to its update policy: PROACTIVE recreates them at once;
    OPPORTUNISTIC waits until a caller chooses them. "The templates for existing instances in the
    group do not change" otherwise (the discovery document, `setInstanceTemplate`).
    """
    body, path = call.body, GROUP.path(call)
    with cloud.store.locked():
        record = load_group(cloud, path)
        if call.method.name.endswith(".setInstanceTemplate"):
            # This method has no fingerprint, and its one field is required: as a version's, an
            # empty name is refused, where one that is left out would change nothing.
            versions = [{"instanceTemplate": body.get("instanceTemplate", "")}]
            body = {"versions": versions, "fingerprint": record["fingerprint"]}
        resources.require_match(body.get("fingerprint"), record["fingerprint"], "resource")
        sent = resources.tidy(body)
        for field in ("name", "zone", "baseInstanceName"):
            if field in sent and last(str(sent[field])) != last(str(record[field])):
                raise invalid(f"The {field} of a managed instance group cannot be changed.")
        if "targetSize" in sent and sent["targetSize"] != record["targetSize"]:
            raise ApiError(501, "the local cloud changes the size of a group by resize only")
        if "instanceTemplate" in sent and "versions" not in sent:
            sent["versions"] = [{"instanceTemplate": sent["instanceTemplate"]}]
        fresh = {k: value for k, value in sent.items() if k != "targetSize" and _is_set(value)}
        # `tidy` drops empty lists, but this one means: no health check any longer.
        if body.get("autoHealingPolicies") == []:
            fresh["autoHealingPolicies"] = []
        record |= fresh
        _complete(cloud, call, record)
        actions.save_group(cloud, path, record)
    health_checks.watch_group(cloud, path)
    if record["updatePolicy"]["type"] == "PROACTIVE":
        roll(cloud, path, list(record["_members"]))
    return resources.begin(cloud, call, GROUP, "patch", path)


def roll(cloud: Cloud, path: str, names: list[str]) -> None:
    """Recreate the instances that are of another template; their names stay.

    All at once: the limits of surge and unavailability are kept, but not obeyed.
    """
    for name in names:
        with cloud.store.locked():
            record = load_group(cloud, path)
            known = record["_members"][name]
            if known["template"] == actions.template_of(record):
                continue
            known["template"] = actions.template_of(record)
            actions.save_group(cloud, path, record)
        actions.act(cloud, path, name, "RECREATING")


@API.method("instanceGroupManagers.delete", permission=GROUP.permission("delete"))
def _delete_group(cloud: Cloud, call: Call) -> Json:
    resources.require_permission(cloud, call, "compute.instanceGroups.delete")
    path = GROUP.path(call)
    with cloud.store.locked():
        record = load_group(cloud, path)
        record["_deleting"] = True
        actions.save_group(cloud, path, record)
    return resources.begin(cloud, call, GROUP, "delete", path, "compute.group.delete", "delete")


@effect("compute.group.delete")
def _delete(cloud: Cloud, path: str) -> None:
    # An instance that is being made would outlive the group otherwise.
    with actions.group_lock(path):
        record = resources.load(cloud, path)
        for name in record["_members"]:
            instances.delete(cloud, actions.instance_path(path, name))
        cloud.store.delete(STORE, path)


# The instances of a group, and their configs. Each operation is done when the group knows what to
# do, not when it has done it: clients wait for the group to be stable.

_UPDATE = GROUP.permission("update")
_VERBS = {"deleteInstances": "DELETING", "recreateInstances": "RECREATING"}


def _chosen(cloud: Cloud, call: Call, path: str) -> list[str]:
    """Return the group's instances that the request names."""
    known = load_group(cloud, path)["_members"]
    chosen = [last(reference) for reference in call.body.get("instances", [])]
    for name in chosen:
        if name not in known:
            why = f"Instance is not a member of the managed instance group '{path}'."
            raise api.wrong_value("instances", name, why)
    return chosen


@API.method("instanceGroupManagers.createInstances", permission=_UPDATE)
def create_instances(cloud: Cloud, call: Call) -> Json:
    """Add instances with names of the caller's choice, which they keep when recreated.

    The operation is done when the group knows the names: "The underlying actions take additional
    time" (the discovery document).
    """
    path = GROUP.path(call)
    sent: list[Json] = call.body.get("instances", [])

    def edit(record: Record) -> None:
        for config in sent:
            resources.require_name(config.get("name", ""))
            resources.require_new(cloud, actions.instance_path(path, config["name"]))
            if config["name"] in record["_members"]:
                raise invalid(f"The group has an instance '{config['name']}' already.")
        for config in sent:
            record["_members"][config["name"]] = actions.member(
                actions.template_of(record), "CREATING"
            )
            record["_configs"][config["name"]] = _config(config)

    operation = _edit(cloud, call, "createInstances", path, edit)
    for config in sent:
        actions.act(cloud, path, config["name"], "CREATING")
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
    """Delete instances, which shrinks the group, or recreate them.

    Both operations are done when the group has taken the order, as for all methods on its
    instances.
    """
    path, verb = GROUP.path(call), call.method.name.partition(".")[2]
    chosen = _chosen(cloud, call, path)
    operation = resources.begin(cloud, call, GROUP, verb, path)
    for name in chosen:
        actions.act(cloud, path, name, _VERBS[verb])
    return operation


@API.method("instanceGroupManagers.abandonInstances", permission=_UPDATE)
def abandon_instances(cloud: Cloud, call: Call) -> Json:
    """Remove instances from the group without deleting them.

    They keep running, and nothing repairs them any longer.
    """
    path = GROUP.path(call)
    for name in _chosen(cloud, call, path):
        actions.forget(cloud, path, name)
    return resources.begin(cloud, call, GROUP, "abandonInstances", path)


@API.method("instanceGroupManagers.applyUpdatesToInstances", permission=_UPDATE)
def apply_updates(cloud: Cloud, call: Call) -> Json:
    """Apply the group's template to instances now.

    An instance that is of the template already is left alone unless the caller asks for REPLACE.
    """
    path = GROUP.path(call)
    every = bool(call.body.get("allInstances"))
    chosen = list(load_group(cloud, path)["_members"]) if every else _chosen(cloud, call, path)
    if call.body.get("minimalAction") == "REPLACE":
        for name in chosen:
            actions.act(cloud, path, name, "RECREATING")
    else:
        roll(cloud, path, chosen)
    return resources.begin(cloud, call, GROUP, "applyUpdatesToInstances", path)


@API.method("instanceGroupManagers.resize", permission=_UPDATE)
def _resize_group(cloud: Cloud, call: Call) -> Json:
    path = GROUP.path(call)
    record = load_group(cloud, path)
    size = call.number("size") or 0
    if size < 0:
        raise api.wrong_value("size", size, "Must not be negative.")
    operation = resources.begin(cloud, call, GROUP, "resize", path)
    staying = [name for name, known in record["_members"].items() if known["action"] != "DELETING"]
    for name in staying[size:]:
        actions.act(cloud, path, name, "DELETING")
    grow(cloud, path, max(0, size - len(staying)))
    return operation


@API.method("instanceGroupManagers.listPerInstanceConfigs", permission=GROUP.permission("get"))
def _list_configs(cloud: Cloud, call: Call) -> Json:
    configs = load_group(cloud, GROUP.path(call))["_configs"]
    return shown(call, {"items": [configs[name] for name in sorted(configs)]} if configs else {})


@API.method("instanceGroupManagers.updatePerInstanceConfigs", permission=_UPDATE)
@API.method("instanceGroupManagers.patchPerInstanceConfigs", permission=_UPDATE)
def update_configs(cloud: Cloud, call: Call) -> Json:
    """Replace instances' configs; they take effect when the instances are recreated.

    Google asks for the use of disks even where a config preserves metadata alone.
    """
    resources.require_permission(cloud, call, "compute.disks.use")
    path = GROUP.path(call)

    def edit(record: Record) -> None:
        for sent in call.body.get("perInstanceConfigs", []):
            if sent.get("name") not in record["_members"]:
                raise invalid(f"The group has no instance '{sent.get('name')}'.")
            record["_configs"][sent["name"]] = _config(sent)

    return _edit(cloud, call, "updatePerInstanceConfigs", path, edit)


@API.method("instanceGroupManagers.deletePerInstanceConfigs", permission=_UPDATE)
def delete_configs(cloud: Cloud, call: Call) -> Json:
    """Delete instances' configs; the instances stay.

    What a config preserved is on the instance until it is recreated.
    """
    path = GROUP.path(call)

    def edit(record: Record) -> None:
        for name in call.body.get("names", []):
            if record["_configs"].pop(name, None) is None:
                raise invalid(f"There is no per-instance config '{name}'.")

    return _edit(cloud, call, "deletePerInstanceConfigs", path, edit)


def _edit(cloud: Cloud, call: Call, type_: str, path: str, edit: Callable[[Record], None]) -> Json:
    with cloud.store.locked():
        record = load_group(cloud, path)
        edit(record)
        actions.save_group(cloud, path, record)
    return resources.begin(cloud, call, GROUP, type_, path)


# As Google shows them.

_ACTIONS = (
    *("none", "creating", "creatingWithoutRetries", "recreating", "deleting", "abandoning"),
    *("restarting", "refreshing", "verifying"),
)


def shown_group(record: Record) -> Json:
    """Return a group with what follows from its instances.

    `isStable` is what clients wait for: no instance has anything to be done.
    """
    members = record["_members"].values()
    counts = dict.fromkeys(_ACTIONS, 0)
    for known in members:
        counts[str(known["action"]).lower()] += 1
    reached = all(known["template"] == actions.template_of(record) for known in members)
    stateful = bool(record["_configs"])
    status = {
        "isStable": counts["none"] == len(members),
        "versionTarget": {"isReached": reached},
        "allInstancesConfig": {"effective": True},
        "stateful": {"hasStatefulConfig": stateful, "perInstanceConfigs": {"allEffective": True}},
    }
    return record | {"currentActions": counts, "status": status}


@API.method("instanceGroupManagers.get", permission=GROUP.permission("get"))
def _get_group(cloud: Cloud, call: Call) -> Json:
    return shown(call, shown_group(load_group(cloud, GROUP.path(call))))


resources.serve_lists(GROUP, shown_group)


@API.method("instanceGroupManagers.listManagedInstances", permission=GROUP.permission("get"))
def _list_managed_instances(cloud: Cloud, call: Call) -> Json:
    group = GROUP.path(call)
    record = load_group(cloud, group)
    found = [_managed(cloud, group, record, name) for name in sorted(record["_members"])]
    return shown(call, {"managedInstances": found} if found else {})


# `currentAction` and `lastAttempt` are what a person looks at when a group is not stable.
def _managed(cloud: Cloud, group: str, record: Record, name: str) -> Json:
    member, path = record["_members"][name], actions.instance_path(group, name)
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


# Errors stay until the instance has been made: an attempt that succeeds clears them.
@API.method("instanceGroupManagers.listErrors", permission=GROUP.permission("get"))
def _list_errors(cloud: Cloud, call: Call) -> Json:
    group = GROUP.path(call)
    record = load_group(cloud, group)
    items = [
        {
            "error": {"code": error["code"], "message": error["message"]},
            "instanceActionDetails": {
                "action": member["action"],
                "instance": url_of(actions.instance_path(group, name)),
                "version": {"instanceTemplate": member["template"]},
            },
            "timestamp": rfc3339(error["at"]),
        }
        for name, member in sorted(record["_members"].items())
        for error in member["errors"]
    ]
    return shown(call, {"items": items} if items else {})


# The plain instance group of each managed one. gcloud and Terraform's data source read these; what
# changes them goes through the manager, so the local cloud stores none.


def _plain_group(cloud: Cloud, record: Record) -> Json:
    template = resources.load(cloud, path_from(actions.template_of(record)))
    interface = template["properties"]["networkInterfaces"][0]
    return {
        "kind": "compute#instanceGroup",
        "id": str(int(record["id"]) + 1),
        "creationTimestamp": record["creationTimestamp"],
        "name": record["name"],
        "description": f"This instance group is controlled by Instance Group Manager "
        f"'{record['name']}'. To modify instances in this group, use the Instance Group Manager "
        "API: https://cloud.google.com/compute/docs/reference/latest/instanceGroupManagers",
        "network": interface.get("network", ""),
        "subnetwork": interface.get("subnetwork", ""),
        "size": len(record["_members"]),
        "zone": record["zone"],
        "selfLink": record["instanceGroup"],
    }


def _managing(cloud: Cloud, call: Call) -> tuple[str, Record]:
    zone = f"projects/{call.project}/{resources.place_of(call)}"
    group = f"{zone}/{COLLECTION}/{call.params['instanceGroup']}"
    return group, load_group(cloud, group)


@API.method("instanceGroups.get", permission="compute.instanceGroups.get")
def _get_plain_group(cloud: Cloud, call: Call) -> Json:
    return shown(call, _plain_group(cloud, _managing(cloud, call)[1]))


@API.method("instanceGroups.list", permission="compute.instanceGroups.list")
def _list_plain_groups(cloud: Cloud, call: Call) -> Json:
    zone = f"projects/{call.project}/{resources.place_of(call)}"
    managed = cloud.store.items(STORE, f"{zone}/{COLLECTION}/")
    records = [_plain_group(cloud, record) for _, record in managed]
    return api.page(call, "compute#instanceGroupList", f"{zone}/instanceGroups", records)


@API.method("instanceGroups.listInstances", permission="compute.instanceGroups.list")
def _list_instances(cloud: Cloud, call: Call) -> Json:
    group, record = _managing(cloud, call)
    paths = [actions.instance_path(group, name) for name in sorted(record["_members"])]
    # An instance that is being made is a member already, but has no record.
    made = [instance for path in paths if (instance := cloud.store.get(STORE, path))]
    if call.body.get("instanceState") == "RUNNING":
        made = [instance for instance in made if instance["status"] == "RUNNING"]
    found = [{"instance": each["selfLink"], "status": each["status"]} for each in made]
    path = f"{path_from(record['instanceGroup'])}/listInstances"
    return api.page(call, "compute#instanceGroupsListInstances", path, found)
