"""Projects: their ids, numbers, shared metadata, and the APIs that are enabled in them."""

import hashlib
from collections.abc import Iterable

from localcloud import data
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud, service_enabled
from localcloud.core.store import POLICY, Record

PROJECT = "project"
_COMMON_METADATA = "compute-project"
DEFAULT_PROJECT = "tpu-stack-local"
ENABLED_SERVICE = "enabled-service"
DEFAULT_SERVICES = "cloudapis.googleapis.com"
"""Brings the APIs that Google's console and command line enable in a new project."""


def find(cloud: Cloud, name: str) -> Record | None:
    """Return the project by its id or its number, or None."""
    return cloud.store.get(PROJECT, f"projects/{identifier(cloud, name)}") if name else None


def number(project: str) -> str:
    """Return the project's number, twelve digits; the same for the same id on every machine."""
    digest = int(hashlib.sha256(project.encode()).hexdigest()[:16], 16)
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
    """Return path parameters with ids in place of project numbers, which all APIs take.

    Records and policies are kept by the id alone, so that both names mean the same resource.
    """
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
    cloud: Cloud, project: str, *, owner: str, apis: Iterable[str] = (DEFAULT_SERVICES,)
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
        enable_services(cloud, project, apis)


def known_services() -> dict[str, Record]:
    """Return the known APIs by name, each with its title."""
    services: dict[str, Record] = data.load("services")
    return services


def service_key(project: str, service: str) -> str:
    """Return the name of a service in a project; also its key in the store."""
    return f"projects/{project}/services/{service}"


def enable_services(
    cloud: Cloud, project: str, services: Iterable[str], *, after: float = 0.0
) -> None:
    """Enable APIs and those that they need; calls keep failing for `after` more seconds.

    Google's answer to the first call says so: "wait a few minutes for the action to propagate".
    """
    with cloud.store.locked():
        for service in services:
            if cloud.store.get(ENABLED_SERVICE, service_key(project, service)) is not None:
                continue
            enable_services(cloud, project, known_services()[service].get("needs", []), after=after)
            record = {"effective": cloud.clock.now() + after}
            cloud.store.put(ENABLED_SERVICE, service_key(project, service), record)
            service_enabled[service].run(cloud, project)


def is_service_enabled(cloud: Cloud, project: str, service: str) -> bool:
    """Return whether calls to `service` are let through in `project`."""
    record = cloud.store.view(ENABLED_SERVICE, service_key(project, service))
    return record is not None and bool(record["effective"] <= cloud.clock.now())
