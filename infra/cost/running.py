"""What a stack goes on costing when its training has ended, and what ends that."""

from __future__ import annotations

from infra.cost.estimate import Estimate
from infra.cost.table import dollars
from infra.settings import StackSettings


def until_destroyed(estimate: Estimate, settings: StackSettings, stack: str) -> str:
    """Say what the stack costs until which command, whether or not it trains."""
    hour = estimate.configured
    amount = f"{'' if hour.complete else 'over '}{dollars(hour.hour)}"
    return _until(f"cost {amount} an hour", settings, stack)


def without_price(settings: StackSettings, stack: str) -> str:
    """Say the same in a machine's metadata, where each new price would be an update of it."""
    return _until("go on costing", settings, stack)


def _until(costs: str, settings: StackSettings, stack: str) -> str:
    return (
        f"TPU and VM {costs}, also once the training has ended or failed, until "
        f"{_end(settings, stack)}. {_limits(settings)}"
    )


def _end(settings: StackSettings, stack: str) -> str:
    """Return the command that ends it; the engine refuses to destroy what is protected."""
    if settings.bucket.protect:
        return f"`pulumi destroy --exclude-protected --stack {stack}`"
    return f"`pulumi destroy --stack {stack}`"


def _limits(settings: StackSettings) -> str:
    limits = settings.limits
    said = []
    if limits.idle_minutes is not None:
        said.append(f"when nothing has trained for {limits.idle_minutes:g} minutes")
    if limits.time_to_live_hours is not None:
        said.append(f"{limits.time_to_live_hours:g} hours after it was made")
    if not said:
        return "The stack has no limits: nothing else takes the TPU down (limits.idleMinutes)"
    return f"Its limits take the TPU down {' and '.join(said)}; the VM's disk and the bucket stay"
