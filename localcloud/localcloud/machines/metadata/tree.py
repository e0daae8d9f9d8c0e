"""The metadata server's tree: its entries, their look-up, and their two forms of text."""

from __future__ import annotations

import json
import re
from typing import Any

from localcloud.core import projects
from localcloud.core.cloud import Cloud
from localcloud.core.machines import MachineSpec

Tree = dict[str, Any]
# Below these, names are the user's own and not turned from camelCase into kebab-case.
_VERBATIM = frozenset({"attributes", "serviceAccounts"})


def build(cloud: Cloud, spec: MachineSpec, *, preempted: bool) -> Tree:
    """Return all entries, named as in the server's JSON."""
    number = projects.number(spec.project)
    instance: Tree = {
        "attributes": dict(spec.attributes),
        "cpuPlatform": "Intel Broadwell",
        "description": "",
        "disks": [],
        "hostname": f"{spec.name}.{spec.zone}.c.{spec.project}.internal",
        "id": spec.number,
        "image": "",
        "machineType": f"projects/{number}/machineTypes/{spec.machine_type}",
        "maintenanceEvent": "NONE",
        "name": spec.name,
        "networkInterfaces": [],
        "preempted": "TRUE" if preempted else "FALSE",
        "scheduling": {
            "automaticRestart": "FALSE" if spec.preemptible else "TRUE",
            "onHostMaintenance": "TERMINATE" if spec.preemptible else "MIGRATE",
            "preemptible": "TRUE" if spec.preemptible else "FALSE",
        },
        "serviceAccounts": _accounts(spec),
        "tags": list(spec.tags),
        "zone": f"projects/{number}/zones/{spec.zone}",
        **spec.details,
    }
    project = {
        "attributes": {
            item["key"]: item.get("value", "")
            for item in projects.common_metadata(cloud, spec.project)
        },
        "numericProjectId": int(number),
        "projectId": spec.project,
    }
    return {"instance": instance, "project": project}


def find(tree: Any, path: str) -> Any:
    """Return the entry at `path` (kebab-case, as callers write it).

    Raises:
        KeyError: when there is none.
    """
    node = tree
    verbatim = False
    for part in path.strip("/").split("/"):
        if not part:
            continue
        if isinstance(node, list):
            # A list of plain words, such as tags, is one value.
            if not part.isdigit() or int(part) >= len(node) or not is_folder(node):
                raise KeyError(path)
            node = node[int(part)]
            continue
        name = part if verbatim else camel(part)
        if not isinstance(node, dict) or name not in node:
            raise KeyError(path)
        node, verbatim = node[name], name in _VERBATIM
    return node


def is_folder(node: Any) -> bool:
    """Return whether an entry has entries below it."""
    if isinstance(node, list):
        return any(isinstance(item, dict) for item in node)
    return isinstance(node, dict)


def listing(node: Any, *, verbatim: bool) -> str:
    """Return the names below an entry, one a line, folders with a slash."""
    if isinstance(node, list):
        return "".join(f"{index}/\n" for index in range(len(node)))
    lines = []
    for name, child in sorted(node.items()):
        shown = name if verbatim else kebab(name)
        lines.append(f"{shown}/\n" if is_folder(child) else f"{shown}\n")
    return "".join(lines)


def text(node: Any) -> str:
    """Return a single value as text: words of a list are given one a line."""
    if isinstance(node, list):
        return "\n".join(str(item) for item in node)
    return str(node)


def flat(node: Any, path: str = "", *, verbatim: bool = False) -> str:
    """Return an entry and all below it as lines `path value`: `recursive=true&alt=text`."""
    if not is_folder(node):
        return f"{path} {text(node)}\n"
    pairs = enumerate(node) if isinstance(node, list) else sorted(node.items())
    lines = []
    for name, child in pairs:
        shown = str(name) if verbatim or isinstance(name, int) else kebab(name)
        below = f"{path}/{shown}" if path else shown
        lines.append(flat(child, below, verbatim=name in _VERBATIM))
    return "".join(lines)


def as_json(node: Any) -> str:
    """Return an entry as JSON."""
    return json.dumps(node, separators=(",", ":"))


def verbatim_below(path: str) -> bool:
    """Return whether the names below `path` are the user's own."""
    return camel(path.strip("/").rpartition("/")[2]) in _VERBATIM


def camel(name: str) -> str:
    """Return `network-interfaces` as `networkInterfaces`."""
    return re.sub(r"-(\w)", lambda found: found[1].upper(), name)


def kebab(name: str) -> str:
    """Return `networkInterfaces` as `network-interfaces`."""
    return re.sub(r"([A-Z])", lambda found: f"-{found[1].lower()}", name)


def _accounts(spec: MachineSpec) -> Tree:
    if spec.service_account is None:
        return {}
    account = {
        "aliases": ["default"],
        "email": spec.service_account,
        "scopes": list(spec.scopes),
    }
    return {"default": account, spec.service_account: account}
