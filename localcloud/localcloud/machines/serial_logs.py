"""Serial ports that also go to Cloud Logging, which keeps them when the VM is gone.

Source: "View serial port output", cloud.google.com/compute/docs/troubleshooting/
viewing-serial-port-output: metadata of the VM or else of its project, for 30 days.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localcloud.core import projects
from localcloud.core.cloud import Cloud
from localcloud.core.machines import SerialLog
from localcloud.core.store import Record

RETENTION = 30 * 86400.0
"""Seconds for which Cloud Logging keeps an entry."""
KEPT = "serial-log"
"""The store's kind of logs whose VM is gone, by the VM's path and its number."""
FILE = "serial.log"
_SWITCH = "serial-port-logging-enable"


def boot(cloud: Cloud, folder: Path) -> tuple[int, float]:
    """Return where the output of a boot that is about to begin will be, and when it begins."""
    path = folder / FILE
    return (path.stat().st_size if path.exists() else 0), cloud.clock.now()


def wanted(cloud: Cloud, machine: Record) -> bool:
    """Return whether metadata asks for it; the host of a TPU has no port that could be asked for.

    The local cloud looks when it is asked, not when a line is written.
    """
    spec = machine["spec"]
    common = projects.common_metadata(cloud, spec["project"])
    metadata = {item["key"]: item.get("value", "") for item in common} | spec["attributes"]
    return "/instances/" in spec["key"] and metadata.get(_SWITCH, "").upper() == "TRUE"


def of(machine: Record, folder: Path) -> SerialLog:
    """Return the log of a machine that is there."""
    return _log(machine["spec"], machine.get("boots", []), folder / FILE)


def keep(cloud: Cloud, machine: Record, folder: Path) -> None:
    """Keep the log of a machine that is about to be deleted, if it is wanted."""
    _forget_old(cloud)
    source, spec = folder / FILE, machine["spec"]
    if not wanted(cloud, machine) or not source.exists():
        return
    source.replace(_path(cloud, spec["number"]))
    record = {name: spec[name] for name in ("project", "zone", "name", "number")}
    record |= {"boots": machine.get("boots", []), "ended": cloud.clock.now()}
    cloud.store.put(KEPT, f"{spec['key']}/{spec['number']}", record)


def kept(cloud: Cloud, project: str) -> list[SerialLog]:
    """Return the logs of a project's machines that are gone."""
    found = cloud.store.items(KEPT, f"projects/{project}/")
    return [_log(gone, gone["boots"], _path(cloud, gone["number"])) for _, gone in found]


def _forget_old(cloud: Cloud) -> None:
    for key, gone in cloud.store.items(KEPT):
        if gone["ended"] < cloud.clock.now() - RETENTION:
            _path(cloud, gone["number"]).unlink(missing_ok=True)
            cloud.store.delete(KEPT, key)


def _log(machine: Record, boots: list[Any], path: Path) -> SerialLog:
    return SerialLog(
        project=machine["project"],
        zone=machine["zone"],
        name=machine["name"],
        number=machine["number"],
        boots=tuple((begin, when) for begin, when in boots),
        output=path.read_bytes() if path.exists() else b"",
    )


def _path(cloud: Cloud, number: int) -> Path:
    return cloud.folder("serial-logs") / f"{number}.log"
