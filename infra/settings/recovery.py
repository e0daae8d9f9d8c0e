"""Settings of the agent that makes a lost TPU anew."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section


class RecoverySettings(Section):
    """Recovery: whether a lost TPU is made anew without a person, and how often."""

    enabled: bool = False
    """Whether the VM makes a TPU anew that was preempted or does not work any more. Not with
    `training.runOn: tpu`, nor for TPUs that Google deletes after a while.
    """
    preemptions_per_day: int = Field(default=48, ge=1, le=1000)
    """How many preemptions a day are answered with a new TPU (1 to 1000)."""
    failures_per_day: int = Field(default=10, ge=1, le=1000)
    """How many TPUs a day are made anew because they do not work (1 to 1000)."""
