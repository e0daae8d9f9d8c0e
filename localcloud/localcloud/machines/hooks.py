"""What an API does when a machine of its turns itself off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localcloud.core.cloud import Cloud

Hook = Callable[["Cloud", str], None]
_HOOKS: list[Hook] = []


def on_power_off(hook: Hook) -> Hook:
    """Register `function(cloud, key)`, called after a machine went off by itself."""
    _HOOKS.append(hook)
    return hook


def powered_off(cloud: Cloud, key: str) -> None:
    """Tell all that are registered; each knows its own machines by their keys."""
    for hook in _HOOKS:
        hook(cloud, key)
