"""Checks of what the agent can make anew."""

from __future__ import annotations

from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem
from infra.settings.training import RunOn


def check_recovery(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse recovery where no machine is left to do it, or where it would fight the state."""
    if not settings.recovery.enabled:
        return
    why = _why_not(settings)
    if why:
        yield Problem(
            "recovery.enabled",
            True,
            f"is not for this stack: {why[0]}",
            why[1],
        )


def _why_not(settings: StackSettings) -> tuple[str, str] | None:
    """Return why a stack can't recover by itself, and the cure; None if it can."""
    queue = settings.tpu.queue
    if settings.training.run_on is RunOn.TPU:
        return (
            "with training.runOn: tpu the agent would be lost along with the TPU",
            "Remove it, and let a laptop run `tpustack recover --loop --stack NAME`",
        )
    if queue is not None and (queue.run_hours or queue.reservation_bound):
        ends = "after tpu.queued.runHours" if queue.run_hours else "when the reservation ends"
        return f"Google deletes its TPU {ends}, which is meant", "Remove it"
    return None
