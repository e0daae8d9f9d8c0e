"""Instances with a TPU: what Google refuses them, and what their guests read."""

from localcloud.core import ApiError, Cloud, Json, Record, invalid
from localcloud.core.cloud import SETTING
from localcloud.services.compute import catalog
from localcloud.services.compute.api import last, path_from, wrong_value

# Listed, but `instances.create` refuses them: github.com/xbill9/gemma4-dev, 2026-10.
_LISTED_ONLY = "ct5lp-"


def require(cloud: Cloud, machine_type: str, zone: str, body: Json) -> None:
    """Refuse what Google refuses an instance with a TPU; others pass."""
    if machine_type.startswith(_LISTED_ONLY):
        raise invalid("This user agent is not allowed to use the machine type.")
    about = catalog.tpu_machines().get(machine_type)
    if about is None:
        return
    scheduling = body.get("scheduling", {})
    if scheduling.get("onHostMaintenance") != "TERMINATE":
        why = f"Instances of {machine_type} do not support live migration: use TERMINATE."
        given = scheduling.get("onHostMaintenance", "MIGRATE")
        raise wrong_value("scheduling.onHostMaintenance", given, why)
    for disk in body.get("disks", ()):
        kind = last(disk.get("initializeParams", {}).get("diskType", "pd-standard"))
        if not disk.get("source") and kind not in about["disks"]:
            raise invalid(f"[{kind}] features are not compatible for creating instance.")
    _require_reservation(cloud, machine_type, zone, body.get("reservationAffinity", {}))


# The setting `reservations` is {zone: [types]}, as for TPU VMs; without it every request finds one.
def _require_reservation(cloud: Cloud, machine_type: str, zone: str, affinity: Json) -> None:
    known = cloud.store.get(SETTING, "reservations")
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION" or known is None:
        return
    if machine_type not in known.get(zone, ()):
        name = last((affinity.get("values") or [""])[0])
        raise ApiError(404, f"The resource 'zones/{zone}/reservations/{name}' was not found")


def attributes(record: Record) -> dict[str, str]:
    """Return what the guest of an instance with a TPU reads in addition to its own metadata.

    The endpoints are bare names, where those of TPU VMs have the address behind two colons.
    """
    about = catalog.tpu_machines().get(last(record["machineType"]))
    if about is None:
        return {}
    known = {
        "TPU_ACCELERATOR_TYPE": about["type"],
        "TPU_TOPOLOGY": about["topology"],
        "TPU_WORKER_ID": "0",
        "ZONE": last(path_from(record["zone"])),
    }
    return {
        "accelerator-type": about["type"],
        "agent-worker-number": "0",
        "tpu-env": "".join(f"{name}: '{value}'\n" for name, value in known.items()),
        "worker-network-endpoints": record["name"],
    }
