"""Inserts, changes and deletes managed instance groups."""

from __future__ import annotations

import re
from typing import Any

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.operations import effect
from localcloud.core.store import Record
from localcloud.services.compute.api import API, STORE
from localcloud.services.compute.fingerprints import require_match
from localcloud.services.compute.groups import actions, health
from localcloud.services.compute.groups.records import (
    KIND,
    instance_path,
    load_group,
    lock,
    member,
    save,
    template_of,
)
from localcloud.services.compute.instance_templates import require_template
from localcloud.services.compute.instances import accounts
from localcloud.services.compute.instances import lifecycle as instances
from localcloud.services.compute.kinds import place_of, tidy
from localcloud.services.compute.links import last, path_of, url_of
from localcloud.services.compute.resources import (
    begin,
    identity,
    load,
    require_name,
    require_new,
    require_permission,
)

_BASE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,57})")
_LONGEST_DELAY = 3600
_UPDATES: Json = {
    "type": "OPPORTUNISTIC",
    "minimalAction": "REPLACE",
    "replacementMethod": "SUBSTITUTE",
    "maxSurge": {"fixed": 1, "calculated": 1},
    "maxUnavailable": {"fixed": 1, "calculated": 1},
}
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


@API.method("instanceGroupManagers.insert", permission=KIND.permission("create"))
def insert_group(cloud: Cloud, call: Call) -> Json:
    """Make a group, and its first instances."""
    name = call.body.get("name", "")
    require_name(name)
    require_permission(cloud, call, "compute.instances.create")
    zone = f"projects/{call.project}/{place_of(call)}"
    path = f"{zone}/{KIND.collection}/{name}"
    body = tidy(call.body)
    size = int(body.pop("targetSize", 0))
    with cloud.store.locked():
        require_new(cloud, path)
        record: Record = {
            "standbyPolicy": {"initialDelaySec": 0, "mode": "MANUAL"},
            "listManagedInstancesResults": "PAGELESS",
            **{key: value for key, value in body.items() if _is_set(value)},
            **identity(cloud, KIND.kind, path, name),
            "instanceGroup": url_of(f"{zone}/instanceGroups/{name}"),
            "targetSuspendedSize": 0,
            "targetStoppedSize": 0,
            "_creator": call.principal.member,
            "_members": {},
            "_configs": {},
        }
        _complete(cloud, call, record)
        if size and not record["baseInstanceName"]:
            raise invalid("Invalid value for field 'resource.baseInstanceName': ''.")
        save(cloud, path, record)
    grow(cloud, path, size)
    health.watch(cloud, path)
    return begin(cloud, call, KIND, "insert", path, "compute.settle", "create")


def grow(cloud: Cloud, path: str, size: int) -> None:
    """Add `size` instances with names that Google makes up."""
    for _ in range(size):
        with cloud.store.locked():
            record = load_group(cloud, path)
            suffix = _letters(cloud.operations.number())
            name = f"{record['baseInstanceName']}-{suffix}"
            record["_members"][name] = member(template_of(record), "CREATING")
            save(cloud, path, record)
        actions.begin(cloud, path, name, "CREATING")


def _letters(number: int) -> str:
    digits = "0123456789bcdfghjklmnpqrstvwxz"
    return "".join(digits[number // len(digits) ** place % len(digits)] for place in range(4))


def _is_set(value: Any) -> bool:
    """Return whether a setting says anything: the provider sends empty groups for unset ones."""
    if isinstance(value, dict):
        return any(_is_set(child) for child in value.values())
    return value not in (None, [], "")


def _complete(cloud: Cloud, call: Call, record: Record) -> None:
    for field in _ABSENT:
        if _is_set(record.get(field)) and record[field] != 0:
            raise ApiError(501, f"the local cloud's managed instance groups have no {field}")
    record.setdefault("baseInstanceName", record["name"])
    if not _BASE_NAME.fullmatch(record["baseInstanceName"]):
        raise invalid(
            "Invalid value for field 'resource.baseInstanceName': "
            f"'{record['baseInstanceName']}'. Must be a match of regex '{_BASE_NAME.pattern}'"
        )
    _complete_template(cloud, call, record)
    record["updatePolicy"] = _UPDATES | record.get("updatePolicy", {})
    record["instanceLifecyclePolicy"] = _REPAIRS | record.get("instanceLifecyclePolicy", {})
    if record["updatePolicy"]["minimalAction"] != "REPLACE":
        raise ApiError(501, "the local cloud's groups update their instances by REPLACE only")
    if record["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "DELETE":
        raise ApiError(501, "the local cloud's groups repair instances that fail, or do nothing")
    _complete_healing(cloud, call, record)


def _complete_template(cloud: Cloud, call: Call, record: Record) -> None:
    versions = record.get("versions") or [{"instanceTemplate": record.get("instanceTemplate", "")}]
    if len(versions) > 1:
        raise ApiError(501, "the local cloud's managed instance groups have one version")
    reference = versions[0].get("instanceTemplate", "")
    if not reference:
        raise invalid("Required field 'resource.instanceTemplate' not specified")
    path = require_template(cloud, call, reference)
    properties = load(cloud, path)["properties"]
    accounts.accepted(cloud, call, properties.get("serviceAccounts", []))
    versions[0]["instanceTemplate"] = record["instanceTemplate"] = url_of(path)
    record["versions"] = versions
    interface = properties["networkInterfaces"][0]
    record["_network"] = {key: interface.get(key, "") for key in ("network", "subnetwork")}


def _complete_healing(cloud: Cloud, call: Call, record: Record) -> None:
    policies = record.get("autoHealingPolicies", [])
    if len(policies) > 1:
        raise invalid("Invalid value for field 'resource.autoHealingPolicies': at most one.")
    for policy in policies:
        path = path_of(policy.get("healthCheck", ""), call.project)
        load(cloud, path)
        require_permission(cloud, call, "compute.healthChecks.useReadOnly")
        policy["healthCheck"] = url_of(path)
        if not 0 <= policy.get("initialDelaySec", 0) <= _LONGEST_DELAY:
            raise invalid(
                "Invalid value for field 'resource.autoHealingPolicies[0].initialDelaySec': "
                f"'{policy['initialDelaySec']}'. Must be between 0 and {_LONGEST_DELAY}."
            )


@API.method("instanceGroupManagers.patch", permission=KIND.permission("update"))
def patch_group(cloud: Cloud, call: Call) -> Json:
    """Change a group; the instances follow by its update policy."""
    return change(cloud, call, call.body)


def change(cloud: Cloud, call: Call, body: Json) -> Json:
    """Change the group that a call names by the settings in `body`, its fingerprint among them."""
    path = KIND.path(call)
    with cloud.store.locked():
        record = load_group(cloud, path)
        require_match(body.get("fingerprint"), record["fingerprint"], "resource")
        sent = tidy(body)
        for field in ("name", "zone", "baseInstanceName"):
            if field in sent and last(str(sent[field])) != last(str(record[field])):
                raise invalid(f"The {field} of a managed instance group cannot be changed.")
        if "targetSize" in sent and sent["targetSize"] != record["targetSize"]:
            raise ApiError(501, "the local cloud changes the size of a group by resize only")
        if "instanceTemplate" in sent and "versions" not in sent:
            sent["versions"] = [{"instanceTemplate": sent["instanceTemplate"]}]
        fresh = {
            key: value for key, value in sent.items() if key != "targetSize" and _is_set(value)
        }
        if body.get("autoHealingPolicies") == []:
            fresh["autoHealingPolicies"] = []
        record |= fresh
        _complete(cloud, call, record)
        save(cloud, path, record)
    health.watch(cloud, path)
    if record["updatePolicy"]["type"] == "PROACTIVE":
        roll(cloud, path, list(record["_members"]))
    return begin(cloud, call, KIND, "patch", path)


def roll(cloud: Cloud, path: str, names: list[str]) -> None:
    """Recreate the instances that are of another template; their names stay."""
    for name in names:
        with cloud.store.locked():
            record = load_group(cloud, path)
            known = record["_members"][name]
            if known["template"] == template_of(record):
                continue
            known["template"] = template_of(record)
            save(cloud, path, record)
        actions.begin(cloud, path, name, "RECREATING")


@API.method("instanceGroupManagers.delete", permission=KIND.permission("delete"))
def delete_group(cloud: Cloud, call: Call) -> Json:
    """Delete a group with its instances."""
    require_permission(cloud, call, "compute.instanceGroups.delete")
    path = KIND.path(call)
    with cloud.store.locked():
        record = load_group(cloud, path)
        record["_deleting"] = True
        save(cloud, path, record)
    return begin(cloud, call, KIND, "delete", path, "compute.group.delete", "delete")


@effect("compute.group.delete")
def _delete(cloud: Cloud, path: str) -> None:
    with lock(path):
        record = load(cloud, path)
        for name in record["_members"]:
            instances.delete(cloud, instance_path(path, name))
        cloud.store.delete(STORE, path)
