"""Settings of the queue of jobs."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section


class JobsSettings(Section):
    """Jobs: whether the stack runs what `tpustack job submit` sends."""

    enabled: bool = False
    """Whether the machine that would run the training runs the jobs of a queue in the bucket
    instead, one after the other. Whoever may write to the bucket can then run programs on it.
    """
    webhook: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,255}$")
    """Id of a secret of the project's Secret Manager that holds the URL of a webhook (Slack's or
    Discord's form), for example tpu-webhook. The machine tells it how each job has ended. Nobody if
    it is not set.
    """
