"""Settings of the queue of jobs."""

from __future__ import annotations

from infra.settings.base import Section


class JobsSettings(Section):
    """Jobs: whether the stack runs what `tpustack job submit` sends."""

    enabled: bool = False
    """Whether the machine that would run the training runs the jobs of a queue in the bucket
    instead, one after the other. Whoever may write to the bucket can then run programs on it.
    """
