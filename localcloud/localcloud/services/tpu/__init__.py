"""The Cloud TPU API: classic nodes, TPU VMs and queued resources."""

from __future__ import annotations

from localcloud.services.tpu import (
    classic,
    common,
    locations,
    operations,
    queued_resources,
    vms,
)
from localcloud.services.tpu.api import API

__all__ = ["API", "classic", "common", "locations", "operations", "queued_resources", "vms"]
