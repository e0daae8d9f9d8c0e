"""Flex-start: TPUs out of the queue that Google deletes after the time they were asked for.

Source: docs.cloud.google.com/tpu/docs/request-using-flex-start: at most 7 days, v5e and v6e,
preemptible quota; when the time is over, the TPU VMs are deleted and the queued resource becomes
SUSPENDED.
"""

from __future__ import annotations

import re

from localcloud.core.call import Json
from localcloud.core.errors import invalid
from localcloud.core.store import Record
from localcloud.services.tpu import catalog
from localcloud.services.tpu.api import zone_of

_LONGEST = 7 * 24 * 3600.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)s")
_TIERS = ("spot", "guaranteed", "bestEffort")


def seconds_of(request: Json) -> float | None:
    """Return how long a request's TPUs run at most; None for ever.

    Raises:
        ApiError: 400 when it is no request for flex-start, or one without a right duration.
    """
    asked = request.get("runDuration", {}).get("maxRunDuration", "")
    if request.get("provisioningModel") != "FLEX_START":
        if asked:
            raise invalid("run_duration is only for provisioning_model FLEX_START.")
        return None
    if tiers := [tier for tier in _TIERS if tier in request]:
        raise invalid(f"provisioning_model FLEX_START and {tiers[0]} may not both be set.")
    match = _DURATION.fullmatch(asked)
    seconds = float(match[1]) if match else 0.0
    if not 0 < seconds <= _LONGEST:
        raise invalid(
            f"Invalid run_duration.max_run_duration '{asked}': FLEX_START takes more than 0s and "
            f"at most {_LONGEST:.0f}s."
        )
    return seconds


def require_generation(node: Record) -> None:
    """Raise what Google answers (in users' notes of 2026-08) where it has no flex-start."""
    name = node["acceleratorType"]
    if not catalog.accelerators()[name].flex_start:
        raise invalid(
            f'FLEX_START provisioning model is not supported for accelerator type "{name}" in '
            f'location "{zone_of(node["queuedResource"])}"'
        )
