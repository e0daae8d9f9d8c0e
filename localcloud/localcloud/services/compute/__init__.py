"""The Compute Engine API."""

from __future__ import annotations

from localcloud.services.compute import (
    addresses,
    disks,
    firewalls,
    groups,
    health_checks,
    images,
    instance_templates,
    instances,
    machine_types,
    networks,
    operations,
    projects,
    routers,
    routes,
    snapshots,
    subnetworks,
    zones,
)
from localcloud.services.compute.api import API

__all__ = [
    "API",
    "addresses",
    "disks",
    "firewalls",
    "groups",
    "health_checks",
    "images",
    "instance_templates",
    "instances",
    "machine_types",
    "networks",
    "operations",
    "projects",
    "routers",
    "routes",
    "snapshots",
    "subnetworks",
    "zones",
]
