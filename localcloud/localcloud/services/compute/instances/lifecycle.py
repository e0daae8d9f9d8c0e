"""Inserts, lists and deletes instances."""

from __future__ import annotations

from localcloud.core.access import POLICY
from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.operations import effect
from localcloud.core.store import Record
from localcloud.services.compute import addresses, catalog, instance_templates, ipam
from localcloud.services.compute.api import API, STORE
from localcloud.services.compute.fingerprints import stamp_labels
from localcloud.services.compute.instances import (
    accounts,
    capacity,
    checks,
    disks,
    interfaces,
    machine,
)
from localcloud.services.compute.instances.records import (
    INSTANCES,
    KIND,
    ended,
    save,
    set_status,
    started,
)
from localcloud.services.compute.kinds import place_of, tidy
from localcloud.services.compute.links import last, path_from, shown, url_of
from localcloud.services.compute.resources import (
    begin,
    identity,
    load,
    require_name,
    require_new,
    require_permission,
    serve_lists,
)
from localcloud.services.orgpolicy import constraints

_OUTPUT = ("id", "kind", "status", "fingerprint", "creationTimestamp", "cpuPlatform", "params")
# The permission that each of these fields of a new instance takes beside `create`. Source:
# cloud.google.com/compute/docs/reference/rest/v1/instances/insert.
_SETS = {
    "labels": "setLabels",
    "metadata": "setMetadata",
    "serviceAccounts": "setServiceAccount",
    "tags": "setTags",
}
_PLATFORMS = {"n2": "Intel Cascade Lake", "e2": "Intel Broadwell", "c3": "Intel Sapphire Rapids"}


@API.method("instances.insert", permission="compute.instances.create")
def insert_instance(cloud: Cloud, call: Call) -> Json:
    """Create an instance, from a template if one is named, and boot it."""
    if call.arg("sourceMachineImage"):
        raise ApiError(501, "the local cloud creates instances from settings and templates only")
    body = tidy(call.body)
    source = call.arg("sourceInstanceTemplate")
    if source:
        template = load(cloud, instance_templates.require_template(cloud, call, source))
        body = instance_templates.body_of(template, "") | body
    path = add(cloud, call, body)
    return begin(cloud, call, KIND, "insert", path, "compute.instance.create", "create")


def add(cloud: Cloud, call: Call, body: Json) -> str:
    """Check and store a new instance with its disks and addresses; its path.

    Args:
        cloud: the cloud.
        call: names project and zone; its caller must be allowed what the instance uses.
        body: the instance, without what means "not set".
    """
    name = body.get("name", "")
    require_name(name)
    path = f"projects/{call.project}/{place_of(call)}/instances/{name}"
    zone = call.params["zone"]
    with cloud.store.locked():
        require_new(cloud, path)
        for field, permission in _SETS.items():
            if body.get(field):
                require_permission(cloud, call, f"compute.instances.{permission}")
        constraints.require_os_login(cloud, call.project, body.get("metadata", {}))
        constraints.forbid_serial_port_logging(cloud, call.project, body.get("metadata", {}))
        record = _new_record(cloud, call, path, body)
        planned = interfaces.plan(cloud, call, zone, body.get("networkInterfaces", []))
        if any(interface.get("accessConfigs") for interface in planned):
            constraints.require_external_ip(cloud, call.project, path)
        record["disks"] = disks.attach_all(cloud, call, path, body.get("disks", []))
        try:
            record["networkInterfaces"] = interfaces.address(cloud, path, planned)
        except ApiError:
            _release(cloud, path, record)
            raise
        save(cloud, path, record)
    return path


def _new_record(cloud: Cloud, call: Call, path: str, body: Json) -> Record:
    zone = call.params["zone"]
    machine_type = last(body.get("machineType", ""))
    if not machine_type:
        raise invalid("Invalid value for field 'resource.machineType': ''. It is required.")
    catalog.machine_type(machine_type, zone)
    if body.get("guestAccelerators"):
        raise invalid(
            "Invalid value for field 'resource.guestAccelerators': the local cloud has no GPUs."
        )
    record: Record = {
        **{key: value for key, value in body.items() if key not in _OUTPUT},
        **identity(cloud, "compute#instance", path, body["name"]),
        "machineType": url_of(f"projects/{call.project}/zones/{zone}/machineTypes/{machine_type}"),
        "status": "PROVISIONING",
        "cpuPlatform": _PLATFORMS.get(machine_type.partition("-")[0], "Intel Haswell"),
        "deletionProtection": body.get("deletionProtection", False),
        "startRestricted": False,
        "metadata": checks.metadata(body.get("metadata", {})),
        "tags": checks.tags(body.get("tags", {})),
        "scheduling": checks.scheduling(body.get("scheduling", {})),
        "shieldedInstanceConfig": checks.shielded(
            body.get("shieldedInstanceConfig") or body.get("shieldedVmConfig", {})
        ),
        "shieldedInstanceIntegrityPolicy": {"updateAutoLearnPolicy": True},
        "satisfiesPzi": False,
        "resourceStatus": {"scheduling": {}},
        "serviceAccounts": accounts.accepted(cloud, call, body.get("serviceAccounts", [])),
    }
    if body.get("labels"):
        record["labels"] = checks.labels(body["labels"])
    stamp_labels(record)
    return record


@effect("compute.instance.create")
def create(cloud: Cloud, path: str) -> None:
    """Boot a new instance, or remove it again when there is no room for it."""
    record = cloud.store.get(STORE, path)
    if record is None:
        return
    try:
        capacity.require(cloud, record)
    except ApiError:
        _forget(cloud, path, record)
        raise
    boot(cloud, path)


def boot(cloud: Cloud, path: str) -> None:
    """Start the machine of an instance, which is RUNNING then."""
    now = rfc3339(cloud.clock.now())
    record = set_status(cloud, path, "RUNNING", lastStartTimestamp=now)
    cloud.machines.boot(machine.spec(cloud, record))
    started.run(cloud, path)


@INSTANCES.method("get")
def get_instance(cloud: Cloud, call: Call) -> Json:
    """Describe an instance; the views BASIC and FULL are the same here."""
    return shown(call, _view(load(cloud, KIND.path(call))))


def _view(record: Record) -> Json:
    """Return an instance with the old names of its Shielded VM options, which beta shows too."""
    return {name: value for name, value in record.items() if value != []} | {
        "shieldedVmConfig": record["shieldedInstanceConfig"],
        "shieldedVmIntegrityPolicy": record["shieldedInstanceIntegrityPolicy"],
    }


serve_lists(KIND, _view)


@INSTANCES.method("delete")
def delete_instance(cloud: Cloud, call: Call) -> Json:
    """Halt an instance and delete it, with the disks that say so."""
    path = KIND.path(call)
    with cloud.store.locked():
        record = load(cloud, path)
        if record["deletionProtection"]:
            raise ApiError(
                400,
                f"Invalid resource usage: 'Resource cannot be deleted if it's protected against "
                f"deletion. Instance '{record['name']}' has deletionProtection set.'.",
                reason="invalidUsage",
            )
        set_status(cloud, path, "STOPPING")
    return begin(cloud, call, KIND, "delete", path, "compute.instance.delete", "delete")


@effect("compute.instance.delete")
def delete(cloud: Cloud, path: str) -> None:
    """Remove an instance with its processes, addresses and disks."""
    record = cloud.store.get(STORE, path)
    kept = record is not None and disks.boot_disk_stays(record)
    cloud.machines.remove(path, keep_disk=kept)
    if record is not None:
        _forget(cloud, path, record)
        ended.run(cloud, path)


def _forget(cloud: Cloud, path: str, record: Record) -> None:
    with cloud.store.locked():
        _release(cloud, path, record)
        cloud.store.delete(POLICY, path_from(record["selfLink"]))
        cloud.store.delete(STORE, path)


def _release(cloud: Cloud, path: str, record: Record) -> None:
    disks.release_all(cloud, record)
    ipam.release(cloud, path)
    addresses.give_back(cloud, path)
