"""Translates an instance's record into the machine that runs for it."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from localcloud.core import projects
from localcloud.core.call import Json
from localcloud.core.cloud import Cloud, MachineSpec
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.links import last, path_from

_MTU = 1460
_DISK_FIELDS = ("deviceName", "index", "interface", "mode", "type")


def spec(cloud: Cloud, record: Record) -> MachineSpec:
    """Return the machine of an instance."""
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
        attributes={
            item["key"]: item.get("value", "") for item in record["metadata"].get("items", [])
        },
        service_account=accounts[0].get("email"),
        scopes=tuple(accounts[0].get("scopes", ())),
        tags=tuple(record["tags"].get("items", ())),
        disk=_boot_disk(cloud, record).get("id", ""),
        preemptible=record["scheduling"]["preemptible"],
        details=_details(cloud, project, record),
    )


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
