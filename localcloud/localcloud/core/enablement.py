"""Enables APIs in a project and tells which are enabled."""

from __future__ import annotations

from collections.abc import Iterable

from localcloud.core import data
from localcloud.core.cloud import Cloud
from localcloud.core.hooks import service_enabled
from localcloud.core.store import Record

ENABLED = "enabled-service"
DEFAULTS = "cloudapis.googleapis.com"
"""Brings the APIs that Google's console and command line enable in a new project."""


def catalog() -> dict[str, Record]:
    """Return the known APIs by name, each with its title."""
    services: dict[str, Record] = data.load("services")
    return services


def key(project: str, service: str) -> str:
    """Return the name of a service in a project; also its key in the store."""
    return f"projects/{project}/services/{service}"


def enable(cloud: Cloud, project: str, services: Iterable[str], *, after: float = 0.0) -> None:
    """Enable APIs and those that they need; calls keep failing for `after` more seconds."""
    with cloud.store.locked():
        for service in services:
            if cloud.store.get(ENABLED, key(project, service)) is not None:
                continue
            enable(cloud, project, catalog()[service].get("needs", []), after=after)
            record = {"effective": cloud.clock.now() + after}
            cloud.store.put(ENABLED, key(project, service), record)
            service_enabled[service].run(cloud, project)


def enabled(cloud: Cloud, project: str, service: str) -> bool:
    """Return whether calls to `service` are let through in `project`."""
    record = cloud.store.get(ENABLED, key(project, service))
    return record is not None and bool(record["effective"] <= cloud.clock.now())
