"""Versions 2 and 2alpha1: TPU VMs."""

from typing import Any

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.store import Record, Work, effect
from localcloud.services import org_policy
from localcloud.services.compute.api import path_of, url_of
from localcloud.services.compute.instances import guest_attributes
from localcloud.services.tpu import api, catalog, checks, hosts, nodes
from localcloud.services.tpu.api import NODE, NODES, V2, bad_state, load, node_name, zone_of

_ALPHA = ("v2alpha1",)
_CHANGEABLE = ("description", "labels", "tags", "metadata", "dataDisks")
_KEPT = (
    *_CHANGEABLE,
    *("cidrBlock", "shieldedInstanceConfig", "bootDiskConfig", "autocheckpointEnabled"),
    "networkConfigs",
)


@NODES.method("create", versions=V2)
def create_node(cloud: Cloud, call: Call) -> Json:
    """Create a TPU VM.

    Checks come before the quota and the stock: a request that is wrong in itself says so.
    """
    name = nodes.new_name(cloud, call)
    record = accepted(cloud, call, zone_of(name), call.body)
    return nodes.begin_create(cloud, call, name, record)


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
    configs = body.get("networkConfigs") or [body.get("networkConfig", {})]
    if body.get("networkConfigs") and body.get("networkConfig"):
        raise invalid("Only one of network_config and network_configs may be given.")
    if any(config.get("enableExternalIps") for config in configs):
        org_policy.require_external_ips_of_tpus(cloud, call.project)
    completed = [checks.network(cloud, call, zone, config) for config in configs]
    if "networkConfigs" in record:
        record["networkConfigs"] = [config for config, _ in completed]
    else:
        record["networkConfig"] = completed[0][0]
    used = [path for config, network in completed for path in (network, config["subnetwork"])]
    # Refused here, before anything is stored: later it would be an operation that fails.
    for config, _ in completed:
        checks.require_room(cloud, config["subnetwork"], accelerator.hosts * slices)
    record.setdefault("shieldedInstanceConfig", {})
    return record | {
        "schedulingConfig": checks.scheduling(body.get("schedulingConfig") or {}),
        "acceleratorType": accelerator.name,
        "acceleratorConfig": {"type": accelerator.type, "topology": accelerator.topology},
        "runtimeVersion": body["runtimeVersion"],
        "serviceAccount": checks.service_account(cloud, call, body.get("serviceAccount", {})),
        "apiVersion": "V2" if call.method.version == "v2" else "V2_ALPHA1",
        "_network": completed[0][1],
        "_uses": [*map(url_of, used), *_disk_urls(call.project, attached)],
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
        record = nodes.load_present(cloud, name)
        emptied = {key for key, value in changes.items() if not value}
        record = {k: v for k, v in (record | changes).items() if k not in emptied}
        cloud.store.put(NODE, name, record)
    hosts.update(cloud, record)
    return record


@NODES.method("getGuestAttributes", verb="get", versions=V2)
def get_guest_attributes(cloud: Cloud, call: Call) -> Json:
    """Return the guest attributes of some or all workers.

    A path ends at a slash: `a/b` is not part of `a/bc`.
    """
    record = load(cloud, NODE, node_name(call, cloud))
    wanted = call.body.get("workerIds") or [str(i) for i in range(len(hosts.keys(record)))]
    query = call.body.get("queryPath", "").rstrip("/")
    found = []
    for worker in wanted:
        if not worker.isdigit() or int(worker) >= len(hosts.keys(record)):
            raise invalid(f"'{record['name']}' has no worker {worker!r}.")
        written = cloud.machines.guest_attributes(hosts.keys(record)[int(worker)])
        below = f"{query}/" if query else ""
        chosen = {key: value for key, value in written.items() if f"{key}/".startswith(below)}
        found.append({"queryPath": query, "queryValue": guest_attributes(chosen)})
    return {"guestAttributes": found}


@NODES.method("simulateMaintenanceEvent", versions=_ALPHA)
@NODES.method("performMaintenance", versions=_ALPHA)
def maintain_node(cloud: Cloud, call: Call) -> Json:
    """Take a READY TPU VM's hosts down and up again, as maintenance does.

    Its name, addresses and disks stay, and it is READY again without the user's doing.
    """
    name = node_name(call, cloud)
    record = load(cloud, NODE, name)
    if record["state"] != "READY":
        raise bad_state("maintenance", record["state"])
    cloud.store.put(NODE, name, record | {"state": "RESTARTING"})
    work = Work("tpu.node.restart", {"name": name}, cloud.seconds("tpu.start"))
    return api.start_operation(cloud, call, work, verb="maintain", target=name)


@effect("tpu.node.restart")
def _restart(cloud: Cloud, name: str) -> Record:
    record = nodes.load_present(cloud, name)
    hosts.halt(cloud, record)
    return nodes.serve(cloud, record)
