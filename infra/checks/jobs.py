"""Checks of the queue of jobs."""

from __future__ import annotations

from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem


def check_webhook(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse a webhook that nobody would tell anything."""
    if settings.jobs.webhook is not None and not settings.jobs.enabled:
        yield Problem(
            "jobs.webhook",
            settings.jobs.webhook,
            "is told how jobs end, but this stack runs none",
            "Set jobs.enabled: true, or remove it",
        )
