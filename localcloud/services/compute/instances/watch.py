"""Who wants to know that an instance runs no longer, whoever ended it."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core.cloud import Cloud

Watcher = Callable[[Cloud, str], None]
_WATCHERS: list[Watcher] = []


def watcher(function: Watcher) -> Watcher:
    """Register `function(cloud, path)`, called after an instance was stopped or deleted."""
    _WATCHERS.append(function)
    return function


def ended(cloud: Cloud, path: str) -> None:
    """Tell all that are registered."""
    for function in _WATCHERS:
        function(cloud, path)
