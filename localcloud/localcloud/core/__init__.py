"""What all emulated APIs share: routing, validation, identity, state, operations and faults.

These are the names that nearly every service takes; the modules have the rest.
"""

from localcloud.core.call import Call, Json, Principal, Request, Response, page
from localcloud.core.clock import Clock, rfc3339
from localcloud.core.cloud import SETTING, Cloud, Hook, MachineSpec, machine_powered_off
from localcloud.core.discovery import document
from localcloud.core.errors import ApiError, failed_precondition, invalid, not_found
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record, Work, effect

__all__ = ["SETTING", "Api", "ApiError", "Call", "Clock", "Cloud", "Collection", "Hook", "Json"]
__all__ += ["MachineSpec", "Principal", "Record", "Request", "Response", "Work", "document"]
__all__ += ["effect", "failed_precondition", "invalid", "machine_powered_off", "not_found"]
__all__ += ["page", "rfc3339"]
