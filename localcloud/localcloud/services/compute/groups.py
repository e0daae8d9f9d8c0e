"""Managed instance groups and their health checks: how they make, recreate and heal instances.

The emulator's own part of a record: `_members` (by name, see `_member`), `_configs` (per-instance
configs by name), `_creator` (as whom the group acts; on Google a service agent with the same
rights) and `_deleting`. A group never changes but in its members: Google's provider replaces one.
"""

import contextlib
import http.client
import io
import itertools
import re
import threading
from collections import defaultdict
from functools import partial
from typing import Any

import localcloud.services.compute.instance_properties as properties_of
from localcloud.core import ApiError, Cloud, document, invalid, not_found, rfc3339
from localcloud.core.call import Call, Json, Principal, Request
from localcloud.core.cloud import cloud_started
from localcloud.core.store import Record, Work, effect
from localcloud.services.compute import api, instance_records, instances, resources, tpu_machines
from localcloud.services.compute.api import API, STORE, last, path_from, path_of, shown, url_of

# With a dash and four characters behind it a name still has at most 63. One that ends in `-###`
# (the discovery document) has that many digits in place of the four characters.
_BASE_NAME = re.compile(r"[a-z](([-a-z0-9]{0,57})|([-a-z0-9]{0,51}-#{1,10}))")
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
_COLLECTION = "instanceGroupManagers"
# What Google wants of slices with a TPU and flex-start.
_LETS_FAIL = _REPAIRS | {"defaultActionOnFailure": "DO_NOTHING"}
# A group acts once at a time: its deletion waits for an instance that is being made. These are not
# the store's lock: a machine that boots or halts may take long, and calls APIs in that time.
_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
# What a group knows of an instance that it has just made, or will make: when that was, and how many
# checks in a row said the opposite of `health`; `lost` if its slice is.
_FRESH: Record = {"since": 0.0, "errors": [], "health": "UNKNOWN", "streak": 0, "lost": False}


def _load(cloud: Cloud, path: str) -> Record:
    """Return the group at `path`; 404 when there is none or it is being deleted."""
    record = resources.load(cloud, path)
    if record.get("_deleting"):
        raise not_found(path)
    return record


def _instance_path(group: str, name: str) -> str:
    return f"{group.partition(f'/{_COLLECTION}/')[0]}/instances/{name}"


def _save(cloud: Cloud, path: str, record: Record) -> None:
    staying = [known for known in record["_members"].values() if known["action"] != "DELETING"]
    record["targetSize"] = len(staying)
    cloud.store.put(STORE, path, record)


def _note(cloud: Cloud, group: str, name: str, **fields: object) -> None:
    """Change what a group knows of an instance, if both are still there.

    Actions and health checks run in threads of their own; a group may be deleted in between.
    """
    with cloud.store.locked():
        record = cloud.store.get(STORE, group)
        if record is not None and name in record["_members"]:
            record["_members"][name] |= fields
            _save(cloud, group, record)


def _is_set(value: Any) -> bool:
    """Return whether a setting says anything: the provider sends empty groups for unset ones."""
    if isinstance(value, dict):
        return any(_is_set(child) for child in value.values())
    return value not in (None, [], "")


def _prepare(cloud: Cloud, call: Call, path: str, record: Record) -> None:
    # What is left out has Google's default, which an empty value of the provider's would hide.
    for field in [name for name, value in record.items() if not _is_set(value)]:
        del record[field]
    record.setdefault("baseInstanceName", record["name"])
    if not _BASE_NAME.fullmatch(record["baseInstanceName"]):
        why = f"Must be a match of regex '{_BASE_NAME.pattern}'"
        raise api.wrong_value("resource.baseInstanceName", record["baseInstanceName"], why)
    _complete_template(cloud, call, record)
    record["updatePolicy"] = _UPDATES | record.get("updatePolicy", {})
    record["instanceLifecyclePolicy"] = _REPAIRS | record.get("instanceLifecyclePolicy", {})
    known = (_REPAIRS, _LETS_FAIL) if tpu_machines.is_slice(record) else (_REPAIRS,)
    if record["instanceLifecyclePolicy"] not in known:
        raise ApiError(501, "the local cloud's groups repair instances that fail, as they were")
    _complete_healing(cloud, call, record)
    zone, name = f"projects/{call.project}/{resources.place_of(call)}", record["name"]
    record |= {
        "instanceGroup": url_of(f"{zone}/instanceGroups/{name}"),
        "targetSuspendedSize": 0,
        "targetStoppedSize": 0,
        "_creator": call.principal.member,
        "_members": {},
        "_configs": {},
    }
    _grow(cloud, record, int(record.get("targetSize", 0)))


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
    tpu_machines.require_group(cloud, call, record, properties)
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


def _grow(cloud: Cloud, record: Record, size: int) -> list[str]:
    """Add `size` instances with generated names to a group's record; the names.

    The base name with four characters at random on Google; here they count, so that two are never
    the same. Hashes at its end are a number, from 1 on.
    """
    base, names = record["baseInstanceName"], list[str]()
    if digits := base.count("#"):
        numbered = (f"{base.rstrip('#')}{number:0{digits}}" for number in itertools.count(1))
        free = (name for name in numbered if name not in record["_members"])
        names += itertools.islice(free, max(size, 0))
    else:
        names += (f"{base}-{_letters(cloud.operations.number())}" for _ in range(size))
    record["_members"] |= {name: {"action": "CREATING", **_FRESH} for name in names}
    return names


def _letters(number: int) -> str:
    count = len(_LETTERS)
    return "".join(_LETTERS[number // count**place % count] for place in range(4))


GROUP = resources.Kind(
    collection=_COLLECTION,
    parameter="instanceGroupManager",
    scope="zones",
    defaults={
        "standbyPolicy": {"initialDelaySec": 0, "mode": "MANUAL"},
        "listManagedInstancesResults": "PAGELESS",
        "targetSize": 0,
    },
    prepare=_prepare,
    stamped=True,
)
_UPDATE = GROUP.permission("update")


@API.method("instanceGroupManagers.insert", permission=GROUP.permission("create"))
def insert_group(cloud: Cloud, call: Call) -> Json:
    """Create a group with its first instances.

    The operation is done before they run: clients wait for `status.isStable`, as the provider does
    with `waitForInstances`.
    """
    resources.require_permission(cloud, call, "compute.instances.create")
    path = resources.add(cloud, call, GROUP, resources.place_of(call), call.body)
    record = _load(cloud, path)
    for name in record["_members"]:
        _act(cloud, path, name, "CREATING")
    _plan_checks(cloud, path, record)
    return resources.begin(cloud, call, GROUP, "insert", path, "compute.settle", "create")


@API.method("instanceGroupManagers.delete", permission=GROUP.permission("delete"))
def _delete_group(cloud: Cloud, call: Call) -> Json:
    resources.require_permission(cloud, call, "compute.instanceGroups.delete")
    path = GROUP.path(call)
    with cloud.store.locked():
        record = _load(cloud, path)
        record["_deleting"] = True
        _save(cloud, path, record)
    return resources.begin(cloud, call, GROUP, "delete", path, "compute.group.delete", "delete")


@effect("compute.group.delete")
def _delete(cloud: Cloud, path: str) -> None:
    # An instance that is being made would outlive the group otherwise.
    with _locks[path]:
        for name in resources.load(cloud, path)["_members"]:
            instances.delete(cloud, _instance_path(path, name))
        cloud.store.delete(STORE, path)


# The instances of a group, and their configs. Each operation is done when the group knows what to
# do, not when it has done it: clients wait for the group to be stable.


@API.method("instanceGroupManagers.createInstances", permission=_UPDATE)
def create_instances(cloud: Cloud, call: Call) -> Json:
    """Add instances with names of the caller's choice, which they keep when recreated.

    The operation is done when the group knows the names: "The underlying actions take additional
    time" (the discovery document).
    """
    path = GROUP.path(call)
    sent: list[Json] = call.body.get("instances", [])
    with cloud.store.locked():
        record = _load(cloud, path)
        for config in sent:
            resources.require_name(config.get("name", ""))
            resources.require_new(cloud, _instance_path(path, config["name"]))
            if config["name"] in record["_members"]:
                raise invalid(f"The group has an instance '{config['name']}' already.")
        for config in sent:
            record["_members"][config["name"]] = {"action": "CREATING", **_FRESH}
            record["_configs"][config["name"]] = _config(config)
        _save(cloud, path, record)
    operation = resources.begin(cloud, call, GROUP, "createInstances", path)
    for config in sent:
        _act(cloud, path, config["name"], "CREATING")
    return operation


def _config(sent: Json) -> Json:
    kept = sent.get("preservedState", {})
    state = {"preservedState": {"metadata": kept["metadata"]}} if kept.get("metadata") else {}
    return {"name": sent["name"], "status": "EFFECTIVE", **state}


@API.method("instanceGroupManagers.deleteInstances", permission=_UPDATE)
def delete_instances(cloud: Cloud, call: Call) -> Json:
    """Delete instances, which shrinks the group."""
    path = GROUP.path(call)
    known = _load(cloud, path)["_members"]
    chosen = [last(reference) for reference in call.body.get("instances", [])]
    for name in chosen:
        if name not in known:
            why = f"Instance is not a member of the managed instance group '{path}'."
            raise api.wrong_value("instances", name, why)
    operation = resources.begin(cloud, call, GROUP, "deleteInstances", path)
    for name in chosen:
        _act(cloud, path, name, "DELETING")
    return operation


@API.method("instanceGroupManagers.resize", permission=_UPDATE)
def _resize_group(cloud: Cloud, call: Call) -> Json:
    path, size = GROUP.path(call), call.number("size") or 0
    if size < 0:
        raise api.wrong_value("size", size, "Must not be negative.")
    with cloud.store.locked():
        record = _load(cloud, path)
        # Those that are being deleted don't count, or a second call would choose them again.
        staying = [n for n, known in record["_members"].items() if known["action"] != "DELETING"]
        added = _grow(cloud, record, size - len(staying))
        _save(cloud, path, record)
    operation = resources.begin(cloud, call, GROUP, "resize", path)
    for name in staying[size:]:
        _act(cloud, path, name, "DELETING")
    for name in added:
        _act(cloud, path, name, "CREATING")
    return operation


@API.method("instanceGroupManagerResizeRequests.insert", permission=_UPDATE)
def request_resize(cloud: Cloud, call: Call) -> Json:
    """Refuse a request for a slice, which comes and goes as a whole; others are not played here.

    "Resize requests" are among what bulk mode does not support (the words are ours;
    docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode, 2026-11).
    """
    if tpu_machines.is_slice(_load(cloud, GROUP.path(call))):
        raise invalid("A managed instance group in bulk mode supports no resize requests.")
    raise ApiError(501, "the local cloud's managed instance groups take no resize requests")


@API.method("instanceGroupManagers.listPerInstanceConfigs", permission=GROUP.permission("get"))
def _list_configs(cloud: Cloud, call: Call) -> Json:
    configs = _load(cloud, GROUP.path(call))["_configs"]
    return shown(call, {"items": [configs[name] for name in sorted(configs)]} if configs else {})


@API.method("instanceGroupManagers.deletePerInstanceConfigs", permission=_UPDATE)
def delete_configs(cloud: Cloud, call: Call) -> Json:
    """Delete instances' configs; the instances stay.

    What a config preserved is on the instance until it is recreated.
    """
    path = GROUP.path(call)
    with cloud.store.locked():
        record = _load(cloud, path)
        for name in call.body.get("names", []):
            if record["_configs"].pop(name, None) is None:
                raise invalid(f"There is no per-instance config '{name}'.")
        _save(cloud, path, record)
    return resources.begin(cloud, call, GROUP, "deletePerInstanceConfigs", path)


# As Google shows them.

_ACTIONS = (
    *("none", "creating", "creatingWithoutRetries", "recreating", "deleting", "abandoning"),
    *("restarting", "refreshing", "verifying"),
)


def _shown_group(record: Record) -> Json:
    """Return a group with what follows from its instances.

    `isStable` is what clients wait for: no instance has anything to be done.
    """
    members = record["_members"].values()
    counts = dict.fromkeys(_ACTIONS, 0)
    for known in members:
        counts[str(known["action"]).lower()] += 1
    stateful = bool(record["_configs"])
    status = {
        "isStable": counts["none"] == len(members),
        "versionTarget": {"isReached": True},
        "allInstancesConfig": {"effective": True},
        "stateful": {"hasStatefulConfig": stateful, "perInstanceConfigs": {"allEffective": True}},
        **tpu_machines.shown_status(record),
    }
    return record | {"currentActions": counts, "status": status}


@API.method("instanceGroupManagers.get", permission=GROUP.permission("get"))
def _get_group(cloud: Cloud, call: Call) -> Json:
    return shown(call, _shown_group(_load(cloud, GROUP.path(call))))


resources.serve_lists(GROUP, _shown_group)


@API.method("instanceGroupManagers.listManagedInstances", permission=GROUP.permission("get"))
def _list_managed_instances(cloud: Cloud, call: Call) -> Json:
    group = GROUP.path(call)
    record = _load(cloud, group)
    found = [_managed(cloud, group, record, name) for name in sorted(record["_members"])]
    return shown(call, {"managedInstances": found} if found else {})


# `currentAction` and `lastAttempt` are what a person looks at when a group is not stable.
def _managed(cloud: Cloud, group: str, record: Record, name: str) -> Json:
    known, path = record["_members"][name], _instance_path(group, name)
    instance = cloud.store.get(STORE, path)
    managed: Json = {
        "instance": url_of(path),
        "name": name,
        "currentAction": known["action"],
        "version": {"instanceTemplate": record["instanceTemplate"]},
        "lastAttempt": {},
    }
    if instance is not None:
        managed |= {"id": instance["id"], "instanceStatus": instance["status"]}
    if known["errors"]:
        managed["lastAttempt"] = {"errors": {"errors": [e["error"] for e in known["errors"]]}}
    policies = record.get("autoHealingPolicies", [])
    if policies:
        found = {"healthCheck": policies[0]["healthCheck"], "detailedHealthState": known["health"]}
        managed["instanceHealth"] = [found]
    kept = record["_configs"].get(name, {}).get("preservedState")
    if kept:
        managed["preservedStateFromConfig"] = kept
    return managed


# Errors stay until the instance has been made: an attempt that succeeds clears them.
@API.method("instanceGroupManagers.listErrors", permission=GROUP.permission("get"))
def _list_errors(cloud: Cloud, call: Call) -> Json:
    group = GROUP.path(call)
    record = _load(cloud, group)
    items = []
    for name, known in sorted(record["_members"].items()):
        details = {
            "action": known["action"],
            "instance": url_of(_instance_path(group, name)),
            "version": {"instanceTemplate": record["instanceTemplate"]},
        }
        items += [error | {"instanceActionDetails": details} for error in known["errors"]]
    return shown(call, {"items": items} if items else {})


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


def _act(cloud: Cloud, group: str, name: str, action: str, *, pause: float = 0.0) -> None:
    """Let the group act on an instance, after `pause` seconds and the time that it takes.

    It is an operation, so that what is still to come survives a restart of the local cloud.
    """
    _note(cloud, group, name, action=action)
    kind, latency = _OPERATIONS[action]
    seconds = pause + cloud.seconds(latency)
    work = Work("compute.group.act", {"group": group, "name": name}, seconds)
    target, zone = _instance_path(group, name), group.partition(f"/{_COLLECTION}/")[0]
    api.start_in(cloud, zone, work, kind=kind, target=target, user=_creator(cloud, group).email)


@effect("compute.group.act")
def _carry_out(cloud: Cloud, group: str, name: str) -> None:
    with _locks[group]:
        record = cloud.store.get(STORE, group) or {"_members": {}, "_deleting": True}
        known = record["_members"].get(name)
        if record.get("_deleting") or known is None or known["action"] == "NONE":
            return
        path = _instance_path(group, name)
        if known["action"] == "DELETING":
            instances.delete(cloud, path)
            _forget(cloud, group, name)
            return
        try:
            _make(cloud, group, record, name)
        # The instance stays in the group, with its error, and the group tries again.
        except ApiError as error:
            entry = {"code": error.reason, "message": error.message}
            at = rfc3339(cloud.clock.now())
            _note(cloud, group, name, errors=[{"error": entry, "timestamp": at}])
            _act(cloud, group, name, known["action"], pause=_RETRY)
            raise


def _make(cloud: Cloud, group: str, record: Record, name: str) -> None:
    path, url = _instance_path(group, name), record["instanceTemplate"]
    # To recreate is to delete and insert: name, disks and addresses are free in between.
    if cloud.store.get(STORE, path) is not None:
        instances.delete(cloud, path)
    body = properties_of.body_of(resources.load(cloud, path_from(url)), name)
    kept = record["_configs"].get(name, {}).get("preservedState", {}).get("metadata", {})
    body["metadata"] = _metadata(body["metadata"], group, url, kept)
    instances.add(cloud, _call(cloud, group), resources.tidy(body))
    # "Bulk" is all or nothing: the first waits until there is room for those that follow, too.
    coming = sum(known["action"] != "NONE" for known in record["_members"].values())
    instances.create(cloud, path, together=coming if tpu_machines.is_slice(record) else 1)
    _note(cloud, group, name, action="NONE", **_FRESH | {"since": cloud.clock.now()})


def _metadata(sent: Json, group: str, template: str, kept: dict[str, str]) -> Json:
    """Return a template's metadata, with what Google adds for the instances of a group."""
    added = {"created-by": group, "instance-template": path_from(template), **kept}
    items = [item for item in sent.get("items", []) if item["key"] not in added]
    return {"items": items + [{"key": key, "value": value} for key, value in added.items()]}


def _forget(cloud: Cloud, group: str, name: str) -> None:
    """Remove an instance from its group's record."""
    with cloud.store.locked():
        record = cloud.store.get(STORE, group)
        if record is not None:
            record["_members"].pop(name, None)
            record["_configs"].pop(name, None)
            _save(cloud, group, record)


def _creator(cloud: Cloud, group: str) -> Principal:
    return Principal(str(_load(cloud, group)["_creator"]))


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


@instance_records.ended
def _ended(cloud: Cloud, instance: str) -> None:
    """Recreate an instance that ended without its group's doing."""
    zone, _, name = instance.partition("/instances/")
    for group, record in cloud.store.items(STORE, f"{zone}/{_COLLECTION}/"):
        idle = name in record["_members"] and record["_members"][name]["action"] == "NONE"
        if idle and not record.get("_deleting"):
            if tpu_machines.is_slice(record):
                _end_slice(cloud, group, record, name)
            else:
                _act(cloud, group, name, "RECREATING", pause=_NOTICE)


def _end_slice(cloud: Cloud, group: str, record: Record, first: str) -> None:
    """Recreate a slice of which an instance has ended, whole, if Google does.

    Google brings back what fails in capacity that it manages, but nothing that was preempted or
    deleted (docs.cloud.google.com/tpu/docs/failure-recovery). The others of that slice stay, and
    cost: no page has them end.
    """
    template = resources.load(cloud, path_from(record["instanceTemplate"]))
    spot = template["properties"]["scheduling"]["provisioningModel"] == "SPOT"
    gone = cloud.store.get(STORE, _instance_path(group, first)) is None
    if spot or gone or record["instanceLifecyclePolicy"] == _LETS_FAIL:
        _note(cloud, group, first, action="NONE", lost=True)
        return
    # So that the group does not hear of their ends.
    for name in record["_members"]:
        _note(cloud, group, name, action="RECREATING")
    for name in record["_members"]:
        if name != first:
            instances.delete(cloud, _instance_path(group, name))
    for name in record["_members"]:
        _act(cloud, group, name, "RECREATING", pause=_NOTICE)


# Health checks, which really ask the machines: a group recreates instances that fail its own.

# Defaults and limits are those of the discovery document.
_CHECK_DEFAULTS: Json = {
    "checkIntervalSec": 5,
    "timeoutSec": 5,
    "unhealthyThreshold": 2,
    "healthyThreshold": 2,
}
_HIGHEST_PORT = 65535
_HIGHEST = {"checkIntervalSec": 300, "timeoutSec": 300}
_MOST_TRIES = 10


def _complete_check(record: Json) -> None:
    if record.get("type") != "HTTP":
        raise ApiError(501, "the local cloud has health checks of the type HTTP only")
    settings = {"port": 80, "proxyHeader": "NONE", "requestPath": "/"}
    record["httpHealthCheck"] = settings | record.get("httpHealthCheck", {})
    if not 0 < record["httpHealthCheck"]["port"] <= _HIGHEST_PORT:
        raise api.wrong_value("resource.httpHealthCheck.port", record["httpHealthCheck"]["port"])
    for name, value in _CHECK_DEFAULTS.items():
        record.setdefault(name, value)
        if not 1 <= record[name] <= _HIGHEST.get(name, _MOST_TRIES):
            why = f"Must be between 1 and {_HIGHEST.get(name, _MOST_TRIES)}."
            raise api.wrong_value(f"resource.{name}", record[name], why)
    # "It is invalid for timeoutSec to have greater value than checkIntervalSec."
    if record["timeoutSec"] > record["checkIntervalSec"]:
        why = f"Must not be greater than checkIntervalSec ({record['checkIntervalSec']})."
        raise api.wrong_value("resource.timeoutSec", record["timeoutSec"], why)


_HEALTH_CHECK = resources.Kind(
    collection="healthChecks",
    parameter="healthCheck",
    scope="global",
    prepare=lambda cloud, call, path, record: _complete_check(record),
    change=lambda cloud, call, before, after: _complete_check(after),
    latency="network",
)
resources.serve(_HEALTH_CHECK)


@API.method("healthChecks.update", permission=_HEALTH_CHECK.permission("update"))
def update_health_check(cloud: Cloud, call: Call) -> Json:
    """Replace all settings of a health check.

    The provider changes checks by PUT. The record keeps what identifies it.
    """
    path = _HEALTH_CHECK.path(call)
    with cloud.store.locked():
        before = resources.load(cloud, path)
        kept = ("id", "kind", "selfLink", "creationTimestamp", "name")
        after = call.body | {name: before[name] for name in kept}
        _complete_check(after)
        return resources.replace(cloud, call, _HEALTH_CHECK, "update", path, after)


def _healthy(cloud: Cloud, check: Json, machine: str) -> bool:
    """Return whether a machine answers a health check as it wants.

    The machine is asked where its port really is on this host, so no firewall rule stands in
    between: on Google the ranges of health checks must be let in.
    """
    settings = check["httpHealthCheck"]
    address = cloud.machines.address(machine, settings["port"])
    if address is None:
        return False
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(*address, timeout=check["timeoutSec"])
        with contextlib.closing(connection):
            host = {"Host": settings["host"]} if settings.get("host") else {}
            connection.request("GET", settings["requestPath"], headers=host)
            return connection.getresponse().status == http.HTTPStatus.OK
    return False


@cloud_started
def resume(cloud: Cloud) -> None:
    """Continue to check the groups that there are: the clock has forgotten it."""
    for path, record in cloud.store.items(STORE, "projects/"):
        if f"/{_COLLECTION}/" in path:
            _plan_checks(cloud, path, record)


def _plan_checks(cloud: Cloud, group: str, record: Record) -> None:
    if record.get("autoHealingPolicies"):
        when = cloud.clock.now() + _check(cloud, record)["checkIntervalSec"]
        cloud.clock.at(when, partial(_round, cloud, group, record["id"]))


def _check(cloud: Cloud, record: Record) -> Record:
    return resources.load(cloud, path_from(record["autoHealingPolicies"][0]["healthCheck"]))


def _round(cloud: Cloud, group: str, number: str) -> None:
    """Ask every instance of the group with the id `number` once: a later one may have its name.

    An instance that the group acts on is left out: it cannot answer yet.
    """
    record = cloud.store.get(STORE, group)
    if record is None or record.get("_deleting") or record["id"] != number:
        return
    check = _check(cloud, record)
    for name, known in record["_members"].items():
        if known["action"] == "NONE":
            _ask(cloud, group, record, check, name)
    _plan_checks(cloud, group, record)


def _ask(cloud: Cloud, group: str, record: Record, check: Record, name: str) -> None:
    known = record["_members"][name]
    answer = _healthy(cloud, check, _instance_path(group, name))
    found = "HEALTHY" if answer else "UNHEALTHY"
    streak = known["streak"] + 1 if found != known["health"] else 0
    # Only so many answers in a row change what is known: one lost packet makes nothing unhealthy.
    enough = check["healthyThreshold" if answer else "unhealthyThreshold"]
    if found != known["health"] and streak >= enough:
        known |= {"health": found, "streak": 0}
    else:
        known["streak"] = streak
    _note(cloud, group, name, health=known["health"], streak=known["streak"])
    policy = record["autoHealingPolicies"][0]
    # "During a VM's initial delay period, the MIG ignores unsuccessful health checks because the VM
    # might be in the startup process."
    young = cloud.clock.now() < known["since"] + policy.get("initialDelaySec", 0)
    if known["health"] == "UNHEALTHY" and not young:
        _act(cloud, group, name, "RECREATING")
