"""Who wants to know that an instance has begun to run, or runs no longer, whoever did it."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core.cloud import Cloud

Watcher = Callable[[Cloud, str], None]
_WATCHERS: list[Watcher] = []
_STARTS: list[Watcher] = []


def watcher(function: Watcher) -> Watcher:
    """Register `function(cloud, path)`, called after an instance was stopped or deleted."""
    _WATCHERS.append(function)
    return function


def ended(cloud: Cloud, path: str) -> None:
    """Tell all that are registered."""
    for function in _WATCHERS:
        function(cloud, path)


def when_started(function: Watcher) -> Watcher:
    """Register `function(cloud, path)`, called after an instance was created or started."""
    _STARTS.append(function)
    return function


def started(cloud: Cloud, path: str) -> None:
    """Tell all that are registered."""
    for function in _STARTS:
        function(cloud, path)
