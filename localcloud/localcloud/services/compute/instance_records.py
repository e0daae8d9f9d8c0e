"""Records of instances: how a method changes one, and the machine that runs for it."""

from collections.abc import Callable, Sequence
from ipaddress import IPv4Network
from typing import Any

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud, Hook, MachineSpec
from localcloud.core.errors import ApiError
from localcloud.core.registry import Collection
from localcloud.core.store import Record
from localcloud.services.compute.api import API, STORE, last, path_from
from localcloud.services.compute.resources import Edit, Kind, begin, load, stamp

INSTANCE = Kind(collection="instances", parameter="instance", scope="zones")
started: Hook[[Cloud, str], None] = Hook()
"""Runs when the instance at a path was created or started."""
ended: Hook[[Cloud, str], None] = Hook()
"""Runs when the instance at a path was stopped or deleted, or powered itself off."""


def policy_resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return the resources whose policies may grant a permission on the instance."""
    return (INSTANCE.path(call), f"projects/{call.project}")


INSTANCES = Collection(API, "instances", "compute.instances", policy_resources)


def existing(cloud: Cloud, call: Call) -> str:
    """Return the path of the instance that a call names; 404 when there is none."""
    path = INSTANCE.path(call)
    load(cloud, path)
    return path


def metadata(record: Record) -> dict[str, str]:
    """Return the metadata of an instance by key."""
    return {item["key"]: item.get("value", "") for item in record["metadata"].get("items", [])}


def invalid_usage(why: str) -> ApiError:
    """Return the 400 for what an instance in its state or with its settings does not allow."""
    return ApiError(400, f"Invalid resource usage: '{why}'.", reason="invalidUsage")


def save(cloud: Cloud, path: str, record: Record) -> None:
    """Store a changed instance.

    The fingerprint covers all of it, so that a change from an older state can be refused.
    """
    stamp(record)
    cloud.store.put(STORE, path, record)


def set_status(cloud: Cloud, path: str, status: str, **fields: str) -> Record:
    """Change an instance's status and timestamps; the changed record.

    Operations run in threads of their own: what they read may be old by the time they write.
    """
    with cloud.store.locked():
        record = load(cloud, path) | {"status": status} | fields
        save(cloud, path, record)
        return record


def instance_changes(name: str) -> Callable[[Edit], Edit]:
    """Register `edit(cloud, call, record)` for the method `name`, such as `setMetadata`.

    `edit` changes the record or refuses, under the store's lock. Afterwards the machine is updated.
    """

    def register(edit: Edit) -> Edit:
        @INSTANCES.method(name)
        def handle(cloud: Cloud, call: Call) -> Json:
            path = INSTANCE.path(call)
            with cloud.store.locked():
                record = load(cloud, path)
                edit(cloud, call, record)
                save(cloud, path, record)
            # Not under the store's lock: a machine that is halting may still call APIs.
            cloud.machines.update(machine_spec(cloud, record))
            return begin(cloud, call, INSTANCE, name, path)

        return edit

    return register


def require_stopped(record: Record, what: str) -> None:
    """Refuse a change that needs the instance to be TERMINATED."""
    if record["status"] != "TERMINATED":
        status = record["status"]
        raise invalid_usage(
            f"{what} can only be changed when the instance is stopped; its status is {status}."
        )


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
    return MachineSpec(
        key=path,
        project=project,
        zone=last(record["zone"]),
        name=record["name"],
        number=int(record["id"]),
        machine_type=last(record["machineType"]),
        attributes=metadata(record),
        service_account=accounts[0].get("email"),
        scopes=tuple(accounts[0].get("scopes", ())),
        tags=tuple(record["tags"].get("items", ())),
        disk=_boot_disk(cloud, record).get("id", ""),
        preemptible=record["scheduling"]["preemptible"],
        details=_details(cloud, project, record),
    )


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
    network = last(interface["network"])
    return {
        "accessConfigs": [
            {"externalIp": config.get("natIP", ""), "type": config["type"]}
            for config in interface.get("accessConfigs", [])
        ],
        "dnsServers": ["169.254.169.254"],
        "forwardedIps": [],
        "gateway": subnet.get("gatewayAddress", ""),
        "ip": interface["networkIP"],
        "ipAliases": [],
        # Guests find their interface by it: the metadata server has no device names.
        "mac": _mac(interface["networkIP"]),
        "mtu": _MTU,
        "network": f"projects/{projects.number(project)}/networks/{network}",
        "subnetmask": str(IPv4Network(subnet.get("ipCidrRange", "10.0.0.0/20")).netmask),
        "targetInstanceIps": [],
    }


def _mac(address: str) -> str:
    # Google derives a VM's MAC address from its internal address, behind 42:01.
    return ":".join(["42", "01", *(f"{int(part):02x}" for part in address.split("."))])


def _word(value: bool) -> str:
    return "TRUE" if value else "FALSE"
