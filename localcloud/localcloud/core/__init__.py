"""What all emulated APIs share: routing, validation, identity, state, operations and faults.

These are the names that nearly every service takes; the modules have the rest.
"""

from localcloud.core.clock import Clock, rfc3339
from localcloud.core.cloud import SETTING, Cloud, Hook, MachineSpec, machine_powered_off
from localcloud.core.discovery import document
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection

__all__ = ["SETTING", "Api", "ApiError", "Clock", "Cloud", "Collection", "Hook", "MachineSpec"]
__all__ += ["document", "invalid", "machine_powered_off", "rfc3339"]
