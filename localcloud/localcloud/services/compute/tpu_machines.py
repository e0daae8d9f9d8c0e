"""Instances with a TPU: what Google refuses them, how several are one, what their guests read."""

import math
import re

from localcloud.core import ApiError, Cloud, Json, Record, invalid
from localcloud.core.call import Call
from localcloud.core.cloud import SETTING
from localcloud.services.compute import catalog, resources
from localcloud.services.compute.api import STORE, last, path_from, path_of, url_of, wrong_value

# Listed, but `instances.create` refuses them: github.com/xbill9/gemma4-dev, 2026-10.
_LISTED_ONLY = "ct5lp-"
# Its name, or with a project's that shares it (docs.cloud.google.com/compute/docs/instances/
# reservations-shared).
_RESERVATION = re.compile(r"(projects/[^/]+/reservations/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def require(cloud: Cloud, machine_type: str, zone: str, body: Json) -> None:
    """Refuse what Google refuses an instance with a TPU; others pass."""
    if machine_type.startswith(_LISTED_ONLY):
        raise invalid("This user agent is not allowed to use the machine type.")
    about = catalog.tpu_machines().get(machine_type)
    if about is None:
        return
    # Seen by users, in other words: a policy connects the instances of a group.
    if body.get("resourcePolicies"):
        raise invalid("Workload policies are not supported for single instances with TPUs.")
    scheduling = body.get("scheduling", {})
    if scheduling.get("onHostMaintenance") != "TERMINATE":
        why = f"Instances of {machine_type} do not support live migration: use TERMINATE."
        given = scheduling.get("onHostMaintenance", "MIGRATE")
        raise wrong_value("scheduling.onHostMaintenance", given, why)
    for disk in body.get("disks", ()):
        kind = last(disk.get("initializeParams", {}).get("diskType", "pd-standard"))
        if not disk.get("source") and kind not in about["disks"]:
            raise invalid(f"[{kind}] features are not compatible for creating instance.")
    affinity = body.get("reservationAffinity", {})
    bound = scheduling.get("provisioningModel") == "RESERVATION_BOUND"
    if bound and affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        # docs.cloud.google.com/tpu/docs/consume-reservation-compute
        raise invalid("RESERVATION_BOUND needs a specific reservation.")
    _require_reservation(cloud, machine_type, zone, affinity)


# The setting `reservations` is {zone: [types]}, as for TPU VMs; without it every request finds one.
def _require_reservation(cloud: Cloud, machine_type: str, zone: str, affinity: Json) -> None:
    known = cloud.store.get(SETTING, "reservations")
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        return
    for value in affinity.get("values", ()):
        if not _RESERVATION.fullmatch(value):
            raise wrong_value("reservationAffinity.values[]", value)
    if known is None:
        return
    if machine_type not in known.get(zone, ()):
        name = last((affinity.get("values") or [""])[0])
        raise ApiError(404, f"The resource 'zones/{zone}/reservations/{name}' was not found")


def attributes(cloud: Cloud, record: Record) -> dict[str, str]:
    """Return what the guest of an instance with a TPU reads in addition to its own metadata.

    The endpoints are bare names, where those of TPU VMs have the address behind two colons.
    """
    about = catalog.tpu_machines().get(last(record["machineType"]))
    if about is None:
        return {}
    topology, hosts = about["topology"], [record["name"]]
    created_by = [
        item["value"] for item in record["metadata"].get("items", ()) if item["key"] == "created-by"
    ]
    group = cloud.store.get(STORE, created_by[0]) if created_by else None
    if group is not None and is_slice(group):
        topology, hosts = group["_topology"], sorted(group["_members"])
    number = str(hosts.index(record["name"]))
    generation, _, size = about["type"].rpartition("-")
    kind = f"{generation}-{int(size) * len(hosts)}"
    bounds = [
        whole // own for whole, own in zip(_sides(topology), _sides(about["topology"]), strict=True)
    ]
    known = {
        "TPU_ACCELERATOR_TYPE": kind,
        "TPU_TOPOLOGY": topology,
        "TPU_HOST_BOUNDS": ",".join(map(str, [*bounds, 1][:3])),
        "TPU_WORKER_ID": number,
        "ZONE": last(path_from(record["zone"])),
    }
    return {
        "accelerator-type": kind,
        "agent-worker-number": number,
        "tpu-env": "".join(f"{name}: '{value}'\n" for name, value in known.items()),
        "worker-network-endpoints": ",".join(hosts),
    }


# Slices: groups of instances that a workload policy connects in a topology. Sources:
# docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode, /about-workload-policies; the
# refusals are those of a public runbook that made v6e slices, 2026-07.


def is_slice(group: Record) -> bool:
    """Return whether a group is one TPU, which lives and ends as a whole."""
    return "_topology" in group


def require_group(cloud: Cloud, call: Call, group: Json, properties: Json) -> None:
    """Refuse what Google refuses a group with a topology, which becomes `_topology` of its record.

    `properties` are those of its template.
    """
    bulk = group.get("targetSizePolicy", {}).get("mode") == "BULK"
    reference = group.get("resourcePolicies", {}).get("workloadPolicy")
    if not reference:
        if bulk:
            raise ApiError(501, "the local cloud's groups in bulk mode are slices with a TPU")
        return
    if not bulk:
        raise invalid("MIGs with TPU accelerator topology require BULK mode in target size policy")
    path = path_of(reference, call.project)
    topology = resources.load(cloud, path)["workloadPolicy"]["acceleratorTopology"]
    resources.require_permission(cloud, call, "compute.resourcePolicies.use")
    group["resourcePolicies"]["workloadPolicy"] = url_of(path)
    kind, group["_topology"] = properties["machineType"], topology
    about = catalog.tpu_machines().get(kind, {"slices": ()})
    if topology not in about["slices"]:
        why = f"{kind} has no such topology of several machines."
        raise wrong_value("workloadPolicy.acceleratorTopology", topology, why)
    hosts = math.prod(_sides(topology)) // math.prod(_sides(about["topology"]))
    # "Grow only from 0, shrink to 0."
    if group.get("targetSize", 0) not in (0, hosts):
        why = f"{topology} takes {hosts} {kind}, all at once."
        raise wrong_value("resource.targetSize", group["targetSize"], why)
    flexible = properties["scheduling"]["provisioningModel"] == "FLEX_START"
    action = group.get("instanceLifecyclePolicy", {}).get("defaultActionOnFailure", "REPAIR")
    if flexible and action != "DO_NOTHING":
        field = "resource.instanceLifecyclePolicy.defaultActionOnFailure"
        raise wrong_value(field, action, "Flex-start in bulk mode needs DO_NOTHING.")


def shown_status(group: Record) -> Json:
    """Return what a slice's status has in addition; nothing for another group."""
    if not is_slice(group):
        return {}
    actions = {known["action"] for known in group["_members"].values()}
    lost = any(known["lost"] for known in group["_members"].values())
    state = "FAILED" if lost else "ACTIVE" if actions == {"NONE"} else "ACTIVATING"
    applied = {"acceleratorTopology": group["_topology"], "state": state}
    bulk: Json = {"inProgress": "CREATING" in actions}
    failed = [error for known in group["_members"].values() for error in known["errors"]]
    if failed:
        bulk["lastProgressCheck"] = {
            "error": {"errors": [failed[0]["error"]]},
            "timestamp": failed[0]["timestamp"],
        }
    return {"appliedAcceleratorTopologies": [applied], "bulkInstanceOperation": bulk}


def _sides(topology: str) -> list[int]:
    return [int(side) for side in topology.split("x")]


def _prepare_policy(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    policy = record.get("workloadPolicy", {})
    if not policy.get("acceleratorTopology") or policy.get("acceleratorTopologyMode"):
        raise ApiError(501, "the local cloud's workload policies have a topology, and connect it")
    if policy.get("type") != "HIGH_THROUGHPUT":
        why = "An accelerator topology needs HIGH_THROUGHPUT."
        raise wrong_value("resource.workloadPolicy.type", policy.get("type", ""), why)
    record["status"] = "READY"


resources.serve(
    resources.Kind(
        collection="resourcePolicies",
        parameter="resourcePolicy",
        scope="regions",
        prepare=_prepare_policy,
    )
)
