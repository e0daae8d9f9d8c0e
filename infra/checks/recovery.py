"""Checks of what the agent can make anew."""

from __future__ import annotations

from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem
from infra.settings.tpu import Architecture
from infra.settings.training import RunOn


def check_recovery(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse recovery where no machine is left to do it, or where it would fight the state."""
    if not settings.recovery.enabled:
        return
    why, cure = None, "Remove it, and let a laptop run `tpustack recover --loop --stack NAME`"
    if settings.architecture is Architecture.NODE:
        why = "the agent makes TPU VMs anew, not classic nodes"
    elif settings.tpu.queue is not None:
        why = "its TPU comes out of the queue, and the state knows the request"
        cure = f"Set tpu.queued: {{enabled: false}}, or: {cure[0].lower()}{cure[1:]}"
    elif settings.training.run_on is RunOn.TPU:
        why = "with training.runOn: tpu the agent would be lost along with the TPU"
    if why:
        yield Problem(
            "recovery.enabled",
            True,
            f"is not for this stack: {why}",
            cure,
        )
