"""Compute instances: their records, and the machines that really run for them."""

from __future__ import annotations

from localcloud.services.compute.instances import (
    disks,
    guest,
    interfaces,
    last_day,
    lifecycle,
    policy,
    power,
    settings,
)

__all__ = ["disks", "guest", "interfaces", "last_day", "lifecycle", "policy", "power", "settings"]
