"""Records of instances: their status, and the machine that runs for one."""

from ipaddress import IPv4Network
from typing import Any

from localcloud.core import ApiError, Cloud, Hook, Json, MachineSpec, Record, projects
from localcloud.services.compute import resources, tpu_machines
from localcloud.services.compute.api import STORE, last, path_from

INSTANCE = resources.Kind(
    collection="instances", parameter="instance", scope="zones", labelled=True, stamped=True
)
started: Hook[[Cloud, str], None] = Hook()
"""Runs when the instance at a path was created or started."""
ended: Hook[[Cloud, str], None] = Hook()
"""Runs when the instance at a path was stopped or deleted, or powered itself off."""


def set_status(cloud: Cloud, path: str, status: str, **fields: str) -> Record:
    """Change an instance's status and timestamps; the changed record.

    Operations run in threads of their own: what they read may be old by the time they write.
    """
    with cloud.store.locked():
        record = resources.load(cloud, path) | {"status": status} | fields
        resources.save(cloud, INSTANCE, path, record)
        return record


def require_stopped(record: Record, what: str) -> None:
    """Refuse a change that needs the instance to be TERMINATED."""
    if record["status"] != "TERMINATED":
        why = f"{what} can only be changed when the instance is stopped"
        message = f"Invalid resource usage: '{why}; its status is {record['status']}.'."
        raise ApiError(400, message, reason="invalidUsage")


# The machine of an instance.

# Google's default: cloud.google.com/vpc/docs/mtu.
_MTU = 1460
_DISK_FIELDS = ("deviceName", "index", "interface", "mode", "type")


def machine_spec(cloud: Cloud, record: Record) -> MachineSpec:
    """Return the machine of an instance.

    It is what the metadata server shows and the guest runs with: a change of the record reaches the
    guest by `machines.update`.
    """
    path = path_from(record["selfLink"])
    project = path.split("/")[1]
    accounts = record.get("serviceAccounts") or [{}]
    items = record["metadata"].get("items", ())
    return MachineSpec(
        key=path,
        project=project,
        zone=last(record["zone"]),
        name=record["name"],
        number=int(record["id"]),
        machine_type=last(record["machineType"]),
        attributes={
            **tpu_machines.attributes(cloud, record),
            **{item["key"]: item.get("value", "") for item in items},
        },
        service_account=accounts[0].get("email"),
        scopes=tuple(accounts[0].get("scopes", ())),
        tags=tuple(record["tags"].get("items", ())),
        disk=_boot_disk(cloud, record).get("id", ""),
        preemptible=record["scheduling"]["preemptible"],
        details=_details(cloud, project, record),
    )


# Metadata, tags and accounts of a running machine change: its metadata server shows the new ones,
# and ends the calls of those who wait for a change.
@resources.changed
def _update_machine(cloud: Cloud, path: str) -> None:
    record = cloud.store.get(STORE, path) if "/instances/" in path else None
    if record is not None:
        cloud.machines.update(machine_spec(cloud, record))


# In the form of the metadata server's JSON, which has its own names and writes booleans as TRUE and
# FALSE.
def _details(cloud: Cloud, project: str, record: Record) -> dict[str, Any]:
    details: dict[str, Any] = {
        "cpuPlatform": record["cpuPlatform"],
        "description": record.get("description", ""),
        "disks": [{name: disk[name] for name in _DISK_FIELDS} for disk in record["disks"]],
        "image": path_from(_boot_disk(cloud, record).get("sourceImage", "")),
        "networkInterfaces": [
            _interface(cloud, project, number, interface)
            for number, interface in enumerate(record["networkInterfaces"])
        ],
        "scheduling": {
            "automaticRestart": _word(record["scheduling"]["automaticRestart"]),
            "onHostMaintenance": record["scheduling"]["onHostMaintenance"],
            "preemptible": _word(record["scheduling"]["preemptible"]),
        },
    }
    if "hostname" in record:
        details["hostname"] = record["hostname"]
    return details


def _boot_disk(cloud: Cloud, record: Record) -> Record:
    """Return the disk that the instance boots from; empty when it is detached."""
    for disk in record["disks"]:
        if disk["boot"]:
            return cloud.store.get(STORE, path_from(disk["source"])) or {}
    return {}


def _interface(cloud: Cloud, project: str, number: int, interface: Json) -> Json:
    subnet = cloud.store.get(STORE, path_from(interface["subnetwork"])) or {}
    network, address = last(interface["network"]), interface["networkIP"]
    return {
        "accessConfigs": [
            {"externalIp": config.get("natIP", ""), "type": config["type"]}
            for config in interface.get("accessConfigs", [])
        ],
        "dnsServers": ["169.254.169.254"],
        "forwardedIps": [],
        "gateway": subnet.get("gatewayAddress", ""),
        "ip": address,
        "ipAliases": [],
        # Guests find their interface by it: the metadata server has no device names.
        # Google derives the MAC address from the internal address, behind 42:01.
        "mac": ":".join(["42", "01", *(f"{int(part):02x}" for part in address.split("."))]),
        "mtu": _MTU,
        "network": f"projects/{projects.number(project)}/networks/{network}",
        "subnetmask": str(IPv4Network(subnet.get("ipCidrRange", "10.0.0.0/20")).netmask),
        "targetInstanceIps": [],
    }


def _word(value: bool) -> str:
    return "TRUE" if value else "FALSE"
