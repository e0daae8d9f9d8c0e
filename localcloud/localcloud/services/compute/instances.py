"""Instances: insertion, deletion, power, settings, guest output, capacity and the daily limit."""

from localcloud.core import ApiError, Cloud, invalid, machine_powered_off, not_found, rfc3339
from localcloud.core.call import Call, Json
from localcloud.core.store import NotYetError, Record, Work, effect
from localcloud.services import org_policy
from localcloud.services.compute import (
    addresses,
    catalog,
    disks,
    instance_properties,
    instance_records as records,
    resources,
    tpu_machines,
)
from localcloud.services.compute.api import API, STORE, last, path_from, shown, url_of, wrong_value
from localcloud.services.compute.instance_records import INSTANCE

# Output only: what a client has read and sends back is ignored.
_OUTPUT = ("id", "kind", "status", "fingerprint", "creationTimestamp", "cpuPlatform", "params")
# The permission that each of these fields of a new instance takes in addition to `create`. Source:
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
    """Create an instance, from a template if one is named, and boot it.

    What the body says goes before the template, field by field.
    """
    if call.arg("sourceMachineImage"):
        raise ApiError(501, "the local cloud creates instances from settings and templates only")
    body = resources.tidy(call.body)
    if source := call.arg("sourceInstanceTemplate"):
        template = resources.load(cloud, instance_properties.require_template(cloud, call, source))
        body = instance_properties.body_of(template, "") | body
    path = add(cloud, call, body)
    return resources.begin(
        cloud, call, INSTANCE, "insert", path, "compute.instance.create", "create"
    )


def add(cloud: Cloud, call: Call, body: Json) -> str:
    """Check and store a new instance with its disks and addresses; return its path.

    The call names project and zone; its caller must be allowed what the instance uses.
    """
    name = body.get("name", "")
    resources.require_name(name)
    path = f"projects/{call.project}/{resources.place_of(call)}/instances/{name}"
    zone, metadata = call.params["zone"], body.get("metadata", {})
    with cloud.store.locked():
        resources.require_new(cloud, path)
        for field, permission in _SETS.items():
            if body.get(field):
                resources.require_permission(cloud, call, f"compute.instances.{permission}")
        org_policy.require_os_login(cloud, call.project, metadata)
        org_policy.forbid_serial_port_logging(cloud, call.project, metadata)
        record = _new_record(cloud, call, path, body)
        planned = addresses.plan_interfaces(cloud, call, zone, body.get("networkInterfaces", []))
        if any(interface.get("accessConfigs") for interface in planned):
            org_policy.require_external_ip(cloud, call.project, path)
        record["disks"] = disks.attach_all(cloud, call, path, body.get("disks", []))
        try:
            record["networkInterfaces"] = addresses.address_interfaces(cloud, path, planned)
        # A refused address must leave no disk behind.
        except ApiError:
            _release(cloud, path, record)
            raise
        resources.save(cloud, INSTANCE, path, record)
    return path


def _new_record(cloud: Cloud, call: Call, path: str, body: Json) -> Record:
    zone = call.params["zone"]
    machine_type = last(body.get("machineType", ""))
    if not machine_type:
        raise wrong_value("resource.machineType", "", "It is required.")
    tpu_machines.require(cloud, machine_type, zone, body)
    catalog.machine_type(machine_type, zone)
    wait = instance_properties.wait_of(body)
    if body.get("guestAccelerators"):
        raise invalid(
            "Invalid value for field 'resource.guestAccelerators': the local cloud has no GPUs."
        )
    # `identity` comes behind the body, so that no caller chooses an id or a self link.
    record: Record = {
        **{key: value for key, value in body.items() if key not in _OUTPUT},
        **resources.identity(cloud, "compute#instance", path, body["name"]),
        "machineType": url_of(f"projects/{call.project}/zones/{zone}/machineTypes/{machine_type}"),
        "status": "PENDING" if wait else "PROVISIONING",
        "_waits_until": cloud.clock.now() + wait,
        "cpuPlatform": _PLATFORMS.get(machine_type.partition("-")[0], "Intel Haswell"),
        "startRestricted": False,
        "deletionProtection": False,
        "metadata": instance_properties.stored_metadata(body.get("metadata", {})),
        "tags": instance_properties.stored_tags(body.get("tags", {})),
        "scheduling": instance_properties.full_scheduling(body.get("scheduling", {})),
        "shieldedInstanceConfig": instance_properties.full_shielding(
            body.get("shieldedInstanceConfig", {})
        ),
        "shieldedInstanceIntegrityPolicy": {"updateAutoLearnPolicy": True},
        "satisfiesPzi": False,
        "resourceStatus": {"scheduling": {}},
        "serviceAccounts": instance_properties.service_accounts(
            cloud, call, body.get("serviceAccounts", [])
        ),
    }
    if body.get("labels"):
        record["labels"] = instance_properties.stored_labels(body["labels"])
    return record


# Seconds between two looks for the capacity that an instance waits for.
_LOOK = 10.0


@effect("compute.instance.create")
def create(cloud: Cloud, path: str, *, together: int = 1) -> None:
    """Boot a new instance, or remove it if there is no capacity for all that come `together`.

    Google removes it too: the operation fails, and a later insert finds the name free. Flex-start
    waits before, PENDING, as long as its request says.
    """
    record = cloud.store.get(STORE, path)
    # Someone may have deleted it, or inserted another one since.
    if record is None or record["status"] not in ("PENDING", "PROVISIONING"):
        return
    try:
        require_capacity(cloud, record, together)
    except ApiError:
        left = record.get("_waits_until", 0.0) - cloud.clock.now()
        if left > 0:
            raise NotYetError(min(_LOOK, left)) from None
        _forget(cloud, path, record)
        raise
    boot(cloud, path)


def boot(cloud: Cloud, path: str) -> None:
    """Start the machine of an instance, which is RUNNING then."""
    now = rfc3339(cloud.clock.now())
    record = records.set_status(cloud, path, "RUNNING", lastStartTimestamp=now)
    cloud.machines.boot(records.machine_spec(cloud, record))
    records.started.run(cloud, path)


@API.method("instances.get", permission=INSTANCE.permission("get"))
def get_instance(cloud: Cloud, call: Call) -> Json:
    """Return an instance; the views BASIC and FULL are the same here.

    Google's BASIC leaves out the partner metadata, which nothing here has.
    """
    return shown(call, _view(resources.load(cloud, INSTANCE.path(call))))


def _view(record: Record) -> Json:
    """Return an instance with the old names of its Shielded VM options, which beta shows too."""
    return {name: value for name, value in record.items() if value != []} | {
        "shieldedVmConfig": record["shieldedInstanceConfig"],
        "shieldedVmIntegrityPolicy": record["shieldedInstanceIntegrityPolicy"],
    }


resources.serve_lists(INSTANCE, _view)


@API.method("instances.delete", permission=INSTANCE.permission("delete"))
def delete_instance(cloud: Cloud, call: Call) -> Json:
    """Delete an instance and its auto-delete disks.

    It is STOPPING at once, and gone when the operation is done.
    """
    path = INSTANCE.path(call)
    records.set_status(cloud, path, "STOPPING")
    return _begin(cloud, call, "delete", "delete")


@effect("compute.instance.delete")
def delete(cloud: Cloud, path: str) -> None:
    """Remove an instance with its processes, addresses and disks.

    Groups and limits of run time call it as well as the API, also for one that is gone already.
    """
    record = cloud.store.get(STORE, path)
    attached = record["disks"] if record is not None else []
    # The disk that it boots from may outlive it, and with it what the machine wrote.
    kept = any(disk["boot"] and not disk["autoDelete"] for disk in attached)
    cloud.machines.remove(path, keep_disk=kept)
    if record is not None:
        _forget(cloud, path, record)
        records.ended.run(cloud, path)


def _forget(cloud: Cloud, path: str, record: Record) -> None:
    with cloud.store.locked():
        _release(cloud, path, record)
        cloud.store.delete(STORE, path)


def _release(cloud: Cloud, path: str, record: Record) -> None:
    disks.release_all(cloud, record)
    addresses.release(cloud, path)
    addresses.give_back(cloud, path)


# Power: start, stop, reset, preemption, and a guest that powers itself off.


def _load(cloud: Cloud, call: Call, what: str, *statuses: str) -> Record:
    """Return the instance of a call that needs it to have one of `statuses`."""
    record = resources.load(cloud, INSTANCE.path(call))
    if record["status"] not in statuses:
        message = (
            f"The resource '{record['name']}' is not ready: {what} is not possible while its "
            f"status is {record['status']}."
        )
        raise ApiError(400, message, reason="resourceNotReady")
    return record


def _begin(cloud: Cloud, call: Call, type_: str, step: str) -> Json:
    path = INSTANCE.path(call)
    return resources.begin(cloud, call, INSTANCE, type_, path, f"compute.instance.{type_}", step)


@API.method("instances.start", permission=INSTANCE.permission("start"))
def start_instance(cloud: Cloud, call: Call) -> Json:
    """Boot a stopped instance; no effect on a running one.

    A zone without room leaves it TERMINATED, and the operation fails.
    """
    record = _load(cloud, call, "start", "TERMINATED", "RUNNING")
    if record["status"] == "TERMINATED":
        records.set_status(cloud, INSTANCE.path(call), "PROVISIONING")
    return _begin(cloud, call, "start", "start")


@effect("compute.instance.start")
def _start(cloud: Cloud, path: str) -> None:
    record = resources.load(cloud, path)
    if record["status"] == "RUNNING":
        return
    try:
        require_capacity(cloud, record)
    except ApiError:
        records.set_status(cloud, path, "TERMINATED")
        raise
    boot(cloud, path)


@API.method("instances.stop", permission=INSTANCE.permission("stop"))
def stop_instance(cloud: Cloud, call: Call) -> Json:
    """Halt an instance; no effect on a stopped one."""
    record = _load(cloud, call, "stop", "TERMINATED", "RUNNING")
    if record["status"] == "RUNNING":
        records.set_status(cloud, INSTANCE.path(call), "STOPPING")
    return _begin(cloud, call, "stop", "stop")


@effect("compute.instance.stop")
def _stop(cloud: Cloud, path: str) -> None:
    cloud.machines.halt(path)
    _stopped(cloud, path)


@API.method("instances.reset", permission=INSTANCE.permission("reset"))
def reset_instance(cloud: Cloud, call: Call) -> Json:
    """Reboot a running instance without a clean shutdown.

    "This is a hard reset": the guest gets no time, and its run time counts on.
    """
    _load(cloud, call, "reset", "RUNNING")
    return _begin(cloud, call, "reset", "start")


@effect("compute.instance.reset")
def _reset(cloud: Cloud, path: str) -> None:
    cloud.machines.halt(path, grace=0)
    cloud.machines.boot(records.machine_spec(cloud, resources.load(cloud, path)))


@API.method(
    "instances.simulateMaintenanceEvent", permission=INSTANCE.permission("simulateMaintenanceEvent")
)
def simulate_maintenance(cloud: Cloud, call: Call) -> Json:
    """Preempt a spot instance; any other one migrates, which it does not notice.

    Source: docs.cloud.google.com/compute/docs/instances/simulating-host-maintenance.
    """
    record, path = _load(cloud, call, "maintenance", "RUNNING"), INSTANCE.path(call)
    work = "compute.instance.preempted" if record["scheduling"]["preemptible"] else "compute.settle"
    return resources.begin(
        cloud, call, INSTANCE, "simulateMaintenanceEvent", path, work, step="stop"
    )


@effect("compute.instance.preempted")
def preempt(cloud: Cloud, path: str) -> None:
    """Preempt a spot instance: 30 seconds' notice, then stop or delete it.

    What follows is the same as for one that stopped itself: `ended` tells its group.
    """
    record = records.set_status(cloud, path, "STOPPING")
    cloud.machines.preempt(path)
    if record["scheduling"].get("instanceTerminationAction") == "DELETE":
        delete(cloud, path)
    else:
        _stopped(cloud, path)


# A guest that shuts itself down is a stop without an operation.
@machine_powered_off
def _went_off(cloud: Cloud, key: str) -> None:
    if "/instances/" in key and cloud.store.get(STORE, key) is not None:
        _stopped(cloud, key)


def _stopped(cloud: Cloud, path: str) -> None:
    records.set_status(cloud, path, "TERMINATED", lastStopTimestamp=rfc3339(cloud.clock.now()))
    records.ended.run(cloud, path)


# Settings of an existing instance.


@resources.changes(INSTANCE, "setMetadata")
def set_metadata(cloud: Cloud, call: Call, record: Record) -> None:
    """Replace the metadata, which running machines see too."""
    current = record["metadata"]["fingerprint"]
    resources.require_match(call.body.get("fingerprint"), current, "metadata")
    record["metadata"] = instance_properties.stored_metadata(call.body)


@resources.changes(INSTANCE, "setLabels")
def _set_labels(cloud: Cloud, call: Call, record: Record) -> None:
    resources.require_match(call.body.get("labelFingerprint"), record["labelFingerprint"], "labels")
    record["labels"] = instance_properties.stored_labels(call.body.get("labels", {}))


@resources.changes(INSTANCE, "setTags")
def _set_tags(cloud: Cloud, call: Call, record: Record) -> None:
    resources.require_match(call.body.get("fingerprint"), record["tags"]["fingerprint"], "tags")
    record["tags"] = instance_properties.stored_tags(call.body)


@resources.changes(INSTANCE, "setServiceAccount")
def _set_service_account(cloud: Cloud, call: Call, record: Record) -> None:
    accepted = instance_properties.service_accounts(cloud, call, [call.body])
    records.require_stopped(record, "The service account")
    record["serviceAccounts"] = accepted


@resources.changes(INSTANCE, "setScheduling")
def set_scheduling(cloud: Cloud, call: Call, record: Record) -> None:
    """Change the scheduling options; spot or not only while stopped.

    What the body leaves out stays, except that it is completed again for the new model.
    """
    before = record["scheduling"]
    kept = {key: value for key, value in before.items() if key not in call.body}
    after = instance_properties.full_scheduling(kept | resources.tidy(call.body))
    if after["preemptible"] != before["preemptible"]:
        records.require_stopped(record, "The provisioning model")
    record["scheduling"] = after


@resources.changes(INSTANCE, "setMachineType")
def _set_machine_type(cloud: Cloud, call: Call, record: Record) -> None:
    zone = call.params["zone"]
    name = last(call.body.get("machineType", ""))
    if not name:
        raise wrong_value("machineType", "", "It is required.")
    catalog.machine_type(name, zone)
    records.require_stopped(record, "The machine type")
    record["machineType"] = url_of(f"projects/{call.project}/zones/{zone}/machineTypes/{name}")


@resources.changes(INSTANCE, "updateShieldedInstanceConfig")
def update_shielded(cloud: Cloud, call: Call, record: Record) -> None:
    """Change the Shielded VM options of a stopped instance.

    They are the virtual firmware's, which reads them when it boots.
    """
    records.require_stopped(record, "The Shielded VM configuration")
    record["shieldedInstanceConfig"] = instance_properties.full_shielding(
        record["shieldedInstanceConfig"] | resources.tidy(call.body)
    )


# Output of the guest: its serial port and guest attributes.


@API.method("instances.getSerialPortOutput", permission=INSTANCE.permission("getSerialPortOutput"))
def get_serial_port_output(cloud: Cloud, call: Call) -> Json:
    """Return the output of a serial port from byte `start` on; only port 1 is written to.

    Google keeps the last megabyte, the local cloud all of it: `start` is never too early.
    """
    path = INSTANCE.path(call)
    resources.load(cloud, path)
    start = call.number("start") or 0
    port = call.arg("port", "1")
    if port not in ("1", "2", "3", "4"):
        raise wrong_value("port", port, "Must be one of 1 to 4.")
    text, end = cloud.machines.serial(path, start) if port == "1" else ("", start)
    output = {"contents": text, "start": str(start), "next": str(end)}
    link = url_of(f"{path}/serialPort")
    return shown(call, {"kind": "compute#serialPortOutput", "selfLink": link, **output})


@API.method("instances.getGuestAttributes", permission=INSTANCE.permission("getGuestAttributes"))
def get_guest_attributes(cloud: Cloud, call: Call) -> Json:
    """Return guest attributes: one by `variableKey`, or a namespace's by `queryPath`.

    404 for none is what clients that wait for one expect.
    """
    path = INSTANCE.path(call)
    attributes = records.machine_spec(cloud, resources.load(cloud, path)).attributes
    # Off unless the metadata asks: the guest would otherwise write where all readers look.
    if attributes.get("enable-guest-attributes", "").upper() != "TRUE":
        message = "Permission denied: the instance's metadata does not set enable-guest-attributes."
        raise ApiError(403, message)
    found, variable = cloud.machines.guest_attributes(path), call.arg("variableKey")
    query = call.arg("queryPath")
    at = f"{path}/guestAttributes/{variable or query}"
    names = ("namespace", "key", "value")
    items = [
        dict(zip(names, (*name.split("/"), value), strict=True))
        for name, value in found.items()
        if (name == variable if variable else name.startswith(query))
    ]
    if not items:
        raise not_found(at)
    answer: Json = {"kind": "compute#guestAttributes", "selfLink": url_of(at)}
    if variable:
        return answer | {"variableKey": variable, "variableValue": items[0]["value"]}
    return answer | {"queryPath": query, "queryValue": {"items": items}}


# Stock-outs and quotas, as switched by settings of the local cloud.
# The setting `compute.stockout` is `{"zones": […]}` (`*` for all), `compute.quota` is
# `{metric: {region: limit}}`: CPUS, and what the chips of machines with a TPU count against.


def require_capacity(cloud: Cloud, record: Record, together: int = 1) -> None:
    """Refuse to start an instance: 403 beyond the region's quotas, 503 if the zone is full.

    With others like it that come `together` it counts as so many.

    The codes are those inside a failed operation; the call itself has succeeded by then.
    """
    zone, own = last(record["zone"]), path_from(record["selfLink"])
    region, project = catalog.region_of(zone), own.split("/")[1]
    free = ("PENDING", "TERMINATED")
    for metric, needed in _uses(record).items():
        limit = cloud.setting("compute.quota").get(metric, {}).get(region)
        if limit is None:
            continue
        # Google holds no CPUs for stopped instances, nor for those that still wait for them.
        held = [
            _uses(other).get(metric, 0)
            for path, other in cloud.store.items(STORE, f"projects/{project}/zones/{region}-")
            if "/instances/" in path and path != own and other["status"] not in free
        ]
        if needed * together + sum(held) > limit:
            message = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} in region {region}."
            raise ApiError(403, message, reason="QUOTA_EXCEEDED")
    zones = cloud.setting("compute.stockout").get("zones", [])
    if zone in zones or "*" in zones:
        message = (
            f"The zone '{path_from(record['zone'])}' does not have enough resources available to "
            "fulfill the request.  Try a different zone, or try again later."
        )
        raise ApiError(503, message, reason="ZONE_RESOURCE_POOL_EXHAUSTED")


def _uses(record: Record) -> dict[str, int]:
    """Return what an instance counts against each quota; flex-start takes that of spot."""
    name = last(record["machineType"])
    found = {"CPUS": catalog.machine_type(name, last(record["zone"])).vcpus}
    about = catalog.tpu_machines().get(name)
    if about and about["quotas"]:
        short = record["scheduling"]["provisioningModel"] in ("SPOT", "FLEX_START")
        found[about["quotas"]["spot" if short else "standard"]] = about["chips"]
    return found


# Instances that may run for a limited time: `maxRunDuration`, which flex-start requires.


@records.started
def begin_run(cloud: Cloud, path: str) -> None:
    """Schedule the end of an instance whose run time is limited: counted from each start."""
    record = cloud.store.get(STORE, path)
    if record is None or not (duration := record["scheduling"].get("maxRunDuration")):
        return
    since, seconds = record["lastStartTimestamp"], float(duration.get("seconds", 0))
    work = Work("compute.instance.over", {"path": path, "since": since}, seconds)
    cloud.operations.start(f"compute-internal/over/{path}/{since}", work)


@effect("compute.instance.over")
def _over(cloud: Cloud, path: str, since: str) -> None:
    record = cloud.store.get(STORE, path)
    if record is None or record["status"] != "RUNNING" or record["lastStartTimestamp"] != since:
        return
    if record["scheduling"].get("instanceTerminationAction") == "DELETE":
        delete(cloud, path)
    else:
        _stop(cloud, path)


# Preemptible instances, the predecessors of spot ones, are stopped after a day.
# Source: cloud.google.com/compute/docs/instances/create-use-preemptible ("always stop after 24
# hours"; spot ones have no such limit). A stop and a start begin a new day, a reset does not.

_DAY = 86400.0


@records.started
def begin_day(cloud: Cloud, path: str) -> None:
    """Schedule the end of an instance that may run for only a day, as an operation of our own.

    The time of its start goes along: one that was stopped and started has a new day.
    """
    record = cloud.store.get(STORE, path)
    if record is not None and _ends(record):
        since = record["lastStartTimestamp"]
        work = Work("compute.instance.end", {"path": path, "since": since}, _DAY)
        cloud.operations.start(f"compute-internal/end/{path}/{since}", work)


@effect("compute.instance.end")
def _end(cloud: Cloud, path: str, since: str) -> None:
    record = cloud.store.get(STORE, path)
    if record is not None and _ends(record) and record["lastStartTimestamp"] == since:
        preempt(cloud, path)


def _ends(record: Record) -> bool:
    scheduling = record["scheduling"]
    old_kind = scheduling["preemptible"] and scheduling["provisioningModel"] != "SPOT"
    return bool(old_kind and record["status"] == "RUNNING")
