"""Projects: their ids, numbers, policies and shared metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from localcloud.core import enablement
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.store import POLICY, Record

PROJECT = "project"
_COMMON_METADATA = "compute-project"
DEFAULT_PROJECT = "tpu-stack-local"


def find(cloud: Cloud, name: str) -> Record | None:
    """Return the project by its id or its number, or None."""
    return cloud.store.get(PROJECT, f"projects/{identifier(cloud, name)}") if name else None


def number(project: str) -> str:
    """Return the project's number, twelve digits; the same for the same id on every machine."""
    digest = int.from_bytes(hashlib.sha256(project.encode()).digest()[:8], "big")
    return str(100_000_000_000 + digest % 900_000_000_000)


def identifier(cloud: Cloud, name: str) -> str:
    """Return the id of a project that is named by its id or by its number."""
    if name.isdigit():
        for _, record in cloud.store.items(PROJECT):
            if record["projectNumber"] == name:
                return str(record["projectId"])
    return name


def numbered(name: str) -> str:
    """Return the name of what is in a project with the project's number in place of its id."""
    _, project, rest = name.split("/", 2)
    return f"projects/{number(project)}/{rest}"


def common_metadata(cloud: Cloud, project: str) -> list[Record]:
    """Return the metadata that all machines of a project share: items with `key` and `value`."""
    record = cloud.store.get(_COMMON_METADATA, project) or {"items": []}
    items: list[Record] = record["items"]
    return items


def set_common_metadata(cloud: Cloud, project: str, items: list[Record]) -> None:
    """Replace the instance metadata that all machines of a project share."""
    cloud.store.put(_COMMON_METADATA, project, {"items": items})


def canonical(cloud: Cloud, params: dict[str, str]) -> dict[str, str]:
    """Return path parameters with ids in place of project numbers, which all APIs take."""
    return {name: _canonical(cloud, name, value) for name, value in params.items()}


def _canonical(cloud: Cloud, name: str, value: str) -> str:
    if name in ("project", "projectsId", "projectId"):
        return identifier(cloud, value)
    collection, _, rest = value.partition("/")
    if name not in ("name", "parent", "resource") or collection != "projects":
        return value
    project, slash, below = rest.partition("/")
    return f"projects/{identifier(cloud, project)}{slash}{below}"


def ensure(
    cloud: Cloud, project: str, *, owner: str, apis: Iterable[str] = (enablement.DEFAULTS,)
) -> None:
    """Create the project with `owner` as its owner and `apis` enabled, unless it exists."""
    key = f"projects/{project}"
    with cloud.store.locked():
        if cloud.store.get(PROJECT, key) is not None:
            return
        record = {
            "projectId": project,
            "projectNumber": number(project),
            "name": project,
            "lifecycleState": "ACTIVE",
            "createTime": rfc3339(cloud.clock.now()),
        }
        cloud.store.put(PROJECT, key, record)
        bindings = [{"role": "roles/owner", "members": [owner]}]
        cloud.store.put(POLICY, key, {"version": 1, "etag": "BwYAAAAAAAE=", "bindings": bindings})
        enablement.enable(cloud, project, apis)
