"""TPU VMs (versions 2 and 2alpha1) and classic nodes (version 1), whose life is the same.

Version 1 also sees, stops and deletes TPU VMs.
"""

from typing import Any

from localcloud.core import ApiError, Cloud, Hook, invalid, machine_powered_off, projects, rfc3339
from localcloud.core.call import Call, Json, page
from localcloud.core.store import Record, Work, effect
from localcloud.services import org_policy
from localcloud.services.compute import addresses, networks, resources
from localcloud.services.compute.api import path_of, url_of
from localcloud.services.tpu import api, catalog, checks, hosts
from localcloud.services.tpu.api import NODE, NODES, V2, bad_state, load, node_name, place, zone_of

served: Hook[[Cloud], None] = Hook()
"""Runs when the hosts of a node serve."""
deleted: Hook[[Cloud, Record], None] = Hook()
"""Runs when a node is gone, with the record that it had."""
preempted: Hook[[Cloud, Record], None] = Hook()
"""Runs when a node was preempted."""
GONE = ("PREEMPTED", "TERMINATED")
"""States in which a node does nothing but hold quota until it is deleted."""
# States in which Google may preempt a node.
_SERVING = ("CREATING", "READY", "STARTING", "REIMAGING")
_DAY = 86400.0
_V1 = ("v1",)
_CHANGEABLE = ("description", "labels", "tags", "metadata", "dataDisks")
_KEPT = (*_CHANGEABLE, "shieldedInstanceConfig", "bootDiskConfig", "autocheckpointEnabled")


def new_name(cloud: Cloud, call: Call) -> str:
    """Return the full name that a call asks for; it must be well-formed and free."""
    name = f"{place(call, cloud)}/nodes/{call.arg('nodeId')}"
    checks.require_name(call.arg("nodeId"), "nodeId")
    require_new(cloud, name)
    return name


def new(cloud: Cloud, name: str, record: Record) -> Record:
    """Return a node's record as it is when its creation begins."""
    return record | {
        "name": name,
        "id": str(cloud.operations.number()),
        "state": "CREATING",
        "createTime": rfc3339(cloud.clock.now()),
    }


def require_new(cloud: Cloud, name: str) -> None:
    """Refuse a name that is taken, also by a node that was preempted."""
    if cloud.store.get(NODE, name) is not None:
        raise ApiError(409, f"Resource '{name}' already exists")


def begin_create(cloud: Cloud, call: Call, name: str, record: Record) -> Json:
    """Store a new node, if its project's quota has room for it, and start its creation.

    The name is checked a second time: another call may have taken it since, and only here the lock
    is held.
    """
    with cloud.store.locked():
        record = new(cloud, name, record)
        checks.require_quota(cloud, call.project, zone_of(name), [record])
        require_new(cloud, name)
        cloud.store.put(NODE, name, record)
    return _start(cloud, call, "create", name)


def begin(
    cloud: Cloud, call: Call, verb: str, states: tuple[str, ...], transitional: str, **fields: str
) -> Json:
    """Start an operation on a node.

    Args:
        call: names the node.
        verb: of the effect and of the operation, such as `stop`.
        states: those in which the node may be; any but `transitional` if there are none.
        transitional: its state until the operation ends.
        fields: what changes at once.
    """
    name = node_name(call, cloud)
    record = load(cloud, NODE, name)
    if record["state"] == transitional or (states and record["state"] not in states):
        raise bad_state(verb, record["state"])
    cloud.store.put(NODE, name, record | {"state": transitional} | fields)
    return _start(cloud, call, verb, name)


@effect("tpu.node.create")
def create(cloud: Cloud, name: str) -> Record:
    """Boot a new node's hosts; a node that finds no room leaves nothing behind.

    On Google, too, the operation fails with RESOURCE_EXHAUSTED, and no node of the name exists.
    """
    record = load_present(cloud, name)
    try:
        hosts.require_tensorflow(record)
        checks.require_stock(cloud, record)
    except ApiError:
        cloud.store.delete(NODE, name)
        raise
    return _with_run_limit(cloud, serve(cloud, record))


def _view(cloud: Cloud, call: Call, record: Record) -> Json:
    if record["state"] == "READY":
        record["networkEndpoints"] = hosts.endpoints(cloud, record)
    return api.node_view(record, call.method.version)


@NODES.method("get")
def get_node(cloud: Cloud, call: Call) -> Json:
    """Describe a node."""
    return _view(cloud, call, load(cloud, NODE, node_name(call, cloud)))


@NODES.method("list")
def list_nodes(cloud: Cloud, call: Call) -> Json:
    """List the nodes of a zone, or of all zones for the location `-`."""
    return page(call, "nodes", [_view(cloud, call, one) for one in api.listed(cloud, call, NODE)])


# Google's roles hold no permission of its own for it (dataset of 2026-08-22).
@NODES.method("getGuestAttributes", verb="get", versions=V2)
def get_guest_attributes(cloud: Cloud, call: Call) -> Json:
    """Return what the guests of a TPU VM have written, of all hosts or of `workerIds`.

    As with instances, the metadata must allow it: there is no source about TPU VMs.
    """
    record, query = load(cloud, NODE, node_name(call, cloud)), call.body.get("queryPath", "")
    if record.get("metadata", {}).get("enable-guest-attributes", "").upper() != "TRUE":
        message = "Permission denied: the node's metadata does not set enable-guest-attributes."
        raise ApiError(403, message)
    keys = hosts.keys(record)
    wanted = call.body.get("workerIds") or [str(index) for index in range(len(keys))]
    if unknown := [one for one in wanted if not one.isdecimal() or int(one) >= len(keys)]:
        raise invalid(f"Invalid worker_ids {unknown}: the node has {len(keys)} workers.")
    return {"guestAttributes": [_guest(cloud, keys[int(index)], query) for index in wanted]}


def _guest(cloud: Cloud, key: str, query: str) -> Json:
    items = [
        dict(zip(("namespace", "key", "value"), (*name.split("/"), value), strict=True))
        for name, value in cloud.machines.guest_attributes(key).items()
        if name.startswith(query.strip("/"))
    ]
    return {"queryPath": query, "queryValue": {"items": items}}


@NODES.method("delete")
def delete_node(cloud: Cloud, call: Call) -> Json:
    """Delete a node, whatever its state.

    A preempted one holds quota and its name until then.
    """
    return begin(cloud, call, "delete", (), "DELETING")


@effect("tpu.node.delete")
def delete(cloud: Cloud, name: str) -> None:
    """Take a node's hosts away and forget it."""
    record = cloud.store.get(NODE, name)
    if record is not None:
        hosts.remove(cloud, record)
        addresses.release(cloud, name)
        cloud.store.delete(NODE, name)
        deleted.run(cloud, record)


@NODES.method("stop")
def stop_node(cloud: Cloud, call: Call) -> Json:
    """Stop a READY node; slices of several hosts cannot be stopped.

    "This operation is only available with single TPU nodes" (the discovery document).
    """
    record = load(cloud, NODE, node_name(call, cloud))
    if record["state"] == "READY" and len(hosts.keys(record)) > 1:
        raise ApiError(400, "Cloud TPU received a bad request. stop is not supported for TPU pods")
    return begin(cloud, call, "stop", ("READY",), "STOPPING")


@effect("tpu.node.stop")
def stop(cloud: Cloud, name: str) -> Record:
    """Halt a node's hosts."""
    record = load_present(cloud, name)
    hosts.halt(cloud, record)
    return set_state(cloud, name, "STOPPED")


@NODES.method("start")
def start_node(cloud: Cloud, call: Call) -> Json:
    """Start a STOPPED node."""
    return begin(cloud, call, "start", ("STOPPED",), "STARTING")


@effect("tpu.node.start")
def start(cloud: Cloud, name: str) -> Record:
    """Boot a stopped node's hosts, if the zone still has room.

    Stopping gives capacity back, so a start can be stocked out as a creation can.
    """
    record = load_present(cloud, name)
    try:
        checks.require_stock(cloud, record)
    except ApiError:
        set_state(cloud, name, "STOPPED")
        raise
    return _with_run_limit(cloud, serve(cloud, record))


@effect("tpu.node.reimage")
def reimage(cloud: Cloud, name: str) -> Record:
    """Boot a node's hosts with empty disks."""
    record = load_present(cloud, name)
    hosts.remove(cloud, record)
    return serve(cloud, record)


def preempt(cloud: Cloud, name: str) -> None:
    """Take a node away as Google does: it stays, useless, until it is deleted.

    Raises ApiError: 400 when the node is stopped, gone, or being deleted.
    """
    with cloud.store.locked():
        record = load(cloud, NODE, name)
        if record["state"] not in _SERVING:
            raise bad_state("preempt", record["state"])
        record = set_state(cloud, name, "PREEMPTED")
    # Outside the lock: machines that end still call APIs.
    hosts.preempt(cloud, record)
    preempted.run(cloud, record)


def set_state(cloud: Cloud, name: str, state: str) -> Record:
    """Store a node's new state; only a READY one is healthy.

    Google shows no health in other states.
    """
    with cloud.store.locked():
        record = load(cloud, NODE, name) | {"state": state}
        record["health"] = "HEALTHY" if state == "READY" else None
        cloud.store.put(NODE, name, record)
        return record


def serve(cloud: Cloud, record: Record) -> Record:
    """Boot a node's hosts; it is READY when they serve.

    Booting takes seconds of real time, in which the node may be preempted or deleted: the state is
    looked at again.
    """
    name = record["name"]
    endpoints = hosts.boot(cloud, record)
    with cloud.store.locked():
        current = cloud.store.get(NODE, name)
        if current is not None and current["state"] not in (*GONE, "DELETING"):
            cloud.store.put(NODE, name, current | {"networkEndpoints": endpoints})
            ready = set_state(cloud, name, "READY")
            served.run(cloud)
            return ready
    # It was preempted or deleted before all of its hosts had booted.
    hosts.halt(cloud, record)
    raise bad_state("update", current["state"] if current else "DELETING")


def _with_run_limit(cloud: Cloud, record: Record) -> Record:
    """Plan the end of a preemptible node: unlike a spot one, it runs for 24 hours at most.

    Source: docs.cloud.google.com/tpu/docs/spot-compute (what has no maximum runtime, and what has).
    """
    if not record.get("schedulingConfig", {}).get("preemptible"):
        return record
    with cloud.store.locked():
        record = load(cloud, NODE, record["name"]) | {"_started": cloud.clock.now()}
        cloud.store.put(NODE, record["name"], record)
    work = Work("tpu.node.end", {"name": record["name"], "since": record["_started"]}, _DAY)
    cloud.operations.start(f"tpu-internal/end/{record['id']}/{record['_started']}", work)
    return record


@effect("tpu.node.end")
def _end(cloud: Cloud, name: str, since: float) -> None:
    current = cloud.store.get(NODE, name) or {}
    # One that was stopped and started has a day from then on.
    if current.get("_started") == since and current["state"] in _SERVING:
        preempt(cloud, name)


def load_present(cloud: Cloud, name: str) -> Record:
    """Return a node that was neither preempted nor terminated."""
    record = load(cloud, NODE, name)
    if record["state"] in GONE:
        raise bad_state("update", record["state"])
    return record


def _start(cloud: Cloud, call: Call, verb: str, name: str) -> Json:
    step = "start" if verb == "reimage" else verb
    work = Work(f"tpu.node.{verb}", {"name": name}, cloud.seconds(f"tpu.{step}"))
    return api.start_operation(cloud, call, work, verb=verb, target=name)


@resources.finders
def _users(cloud: Cloud, path: str) -> list[str]:
    """Return the nodes that keep a network, subnetwork or disk from being deleted.

    Compute Engine asks this hook: its own records do not know TPUs.
    """
    return [name for name, record in cloud.store.items(NODE) if url_of(path) in record["_uses"]]


# A host that shuts itself down ends the whole slice: the others have nothing to talk to.
@machine_powered_off
def _went_off(cloud: Cloud, key: str) -> None:
    name, separator, _ = key.partition("/hosts/")
    record = cloud.store.get(NODE, name) if separator else None
    if record is not None and record["state"] == "READY":
        hosts.halt(cloud, record)
        set_state(cloud, name, "STOPPED")


# TPU VMs.


@NODES.method("create", versions=V2)
def create_node(cloud: Cloud, call: Call) -> Json:
    """Create a TPU VM.

    Checks come before the quota and the stock: a request that is wrong in itself says so.
    """
    name = new_name(cloud, call)
    record = accepted(cloud, call, zone_of(name), call.body)
    return begin_create(cloud, call, name, record)


def accepted(cloud: Cloud, call: Call, zone: str, body: Json, slices: int = 1) -> Record:
    """Return a TPU VM as it will be stored, checked and completed, still without a name.

    `slices` is how many of them there will be.

    Raises:
        ApiError: 400, 403 or 404 for what is wrong with it.
    """
    accelerator = checks.accelerator(zone, body)
    checks.require_common(body)
    checks.require_runtime(body.get("runtimeVersion", ""), accelerator)
    checks.require_boot_disk(body.get("bootDiskConfig", {}))
    sent = body.get("dataDisks", [])
    attached = checks.accepted_disks(cloud, call, zone, accelerator, sent, slices=slices)
    record: Record = {key: body[key] for key in _KEPT if body.get(key)}
    if attached:
        record["dataDisks"] = attached
    config = body.get("networkConfig", {})
    if config.get("enableExternalIps"):
        org_policy.require_external_ips_of_tpus(cloud, call.project)
    record["networkConfig"], network = checks.network(cloud, call, zone, config)
    subnetwork = record["networkConfig"]["subnetwork"]
    # Refused here, before anything is stored: later it would be an operation that fails.
    checks.require_room(cloud, subnetwork, accelerator.hosts * slices)
    record.setdefault("shieldedInstanceConfig", {})
    return record | {
        "schedulingConfig": checks.scheduling(body.get("schedulingConfig") or {}),
        "acceleratorType": accelerator.name,
        "acceleratorConfig": {"type": accelerator.type, "topology": accelerator.topology},
        "runtimeVersion": body["runtimeVersion"],
        "serviceAccount": checks.service_account(cloud, call, body.get("serviceAccount", {})),
        "apiVersion": "V2" if call.method.version == "v2" else "V2_ALPHA1",
        "_network": network,
        "_uses": [url_of(network), url_of(subnetwork), *_disk_urls(call.project, attached)],
    }


def _disk_urls(project: str, attached: list[Json]) -> list[str]:
    return [url_of(path_of(disk["sourceDisk"], project)) for disk in attached]


@NODES.method("patch", verb="update", versions=V2)
def patch_node(cloud: Cloud, call: Call) -> Json:
    """Change a TPU VM's description, labels, tags, metadata or data disks.

    The disks are a list as a whole: what it leaves out is detached.
    """
    name = node_name(call, cloud)
    fields = call.mask()
    wrong = [field for field in fields if field not in _CHANGEABLE]
    if wrong or not fields:
        raise invalid(
            f"Invalid update_mask {call.arg('updateMask')!r}. Fields that can be changed are "
            f"{', '.join(_CHANGEABLE)}."
        )
    record = load(cloud, NODE, name)
    if record["state"] not in ("READY", "STOPPED"):
        raise bad_state("update", record["state"])
    checks.require_common(call.body)
    changes = {field: call.body.get(field) for field in fields}
    if "dataDisks" in changes:
        accelerator = catalog.accelerators()[record["acceleratorType"]]
        sent = call.body.get("dataDisks", [])
        attached = checks.accepted_disks(cloud, call, zone_of(name), accelerator, sent, node=name)
        before = _disk_urls(call.project, record.get("dataDisks", []))
        kept = [url for url in record["_uses"] if url not in before]
        changes |= {"dataDisks": attached, "_uses": kept + _disk_urls(call.project, attached)}
    arguments = {"name": name, "changes": changes}
    work = Work("tpu.node.update", arguments, cloud.seconds("tpu.update"))
    return api.start_operation(cloud, call, work, verb="update", target=name)


@effect("tpu.node.update")
def _update(cloud: Cloud, name: str, changes: dict[str, Any]) -> Record:
    with cloud.store.locked():
        record = load_present(cloud, name)
        emptied = {key for key, value in changes.items() if not value}
        record = {k: v for k, v in (record | changes).items() if k not in emptied}
        cloud.store.put(NODE, name, record)
    hosts.update(cloud, record)
    return record


# Classic nodes.


@NODES.method("create", versions=_V1)
def create_classic_node(cloud: Cloud, call: Call) -> Json:
    """Create a classic node."""
    name = new_name(cloud, call)
    checks.require_nodes_allowed(cloud)
    accelerator = checks.accelerator(zone_of(name), call.body)
    checks.require_common(call.body)
    _require_version(call.body.get("tensorflowVersion", ""))
    with cloud.store.locked():
        return begin_create(cloud, call, name, _classic_record(cloud, call, accelerator))


@NODES.method("reimage", versions=_V1)
def reimage_node(cloud: Cloud, call: Call) -> Json:
    """Install another TensorFlow version on a classic node.

    The hosts start with empty disks, as after a creation.
    """
    name = node_name(call, cloud)
    version = call.body.get("tensorflowVersion", "")
    if "tensorflowVersion" not in load(cloud, NODE, name):
        raise invalid(f"'{name}' is a TPU VM; only TPU nodes can be reimaged.")
    _require_version(version)
    states = ("READY", "STOPPED")
    return begin(cloud, call, "reimage", states, "REIMAGING", tensorflowVersion=version)


def _classic_record(cloud: Cloud, call: Call, accelerator: catalog.Accelerator) -> Record:
    body = call.body
    project = call.project
    network = networks.require_network(cloud, project, checks.by_id(cloud, body.get("network", "")))
    if not body.get("useServiceNetworking") and network.split("/")[1] != project:
        raise invalid("A Shared VPC's network needs use_service_networking.")
    record: Record = {
        "description": body.get("description"),
        "labels": body.get("labels"),
        "acceleratorType": accelerator.name,
        "acceleratorConfig": {"type": accelerator.type, "topology": accelerator.topology},
        "tensorflowVersion": body["tensorflowVersion"],
        # Version 1 shows the project's number in it; `_network` keeps the id.
        "network": network.replace(f"projects/{project}/", f"projects/{projects.number(project)}/"),
        "serviceAccount": api.service_identity(project),
        "schedulingConfig": checks.scheduling(body.get("schedulingConfig") or {}) or None,
        "useServiceNetworking": body.get("useServiceNetworking") or None,
        "apiVersion": "V1",
        "_network": network,
        "_uses": [url_of(network)],
    }
    wanted = body.get("cidrBlock", "")
    if record["useServiceNetworking"] and wanted:
        raise invalid("cidr_block and use_service_networking exclude each other.")
    # Private services access brings a range of its own, which only Google knows.
    if not record["useServiceNetworking"]:
        record["cidrBlock"] = checks.accepted_range(cloud, accelerator, network, wanted)
    return {key: value for key, value in record.items() if value is not None}


def _require_version(version: str) -> None:
    if version not in catalog.tensorflow_versions():
        known = ", ".join(catalog.tensorflow_versions())
        raise checks.wrong("TensorFlowVersion", version, f". Accepted values are {known}.")
