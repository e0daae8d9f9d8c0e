"""Compares a stack's cost before and after a change."""

from __future__ import annotations

import yaml

from infra.catalog import Catalog
from infra.cost import Total, dollars, of_stack
from infra.settings import StackSettings
from infra.settings.base import SettingsError
from infra.settings.parse import load_yaml, parse
from tpustack.ci.result import CostChange


def cost_change(
    stack: str, before: str | None, after: StackSettings, catalog: Catalog
) -> CostChange:
    """Return the hourly cost with the stack file as it was (its text, if any) and as it is."""
    now = of_stack(after, stack, catalog).configured
    settings = _settings(stack, before)
    if settings is None:
        return CostChange(None, _shown(now), f"+{_shown(now)}")
    then = of_stack(settings, stack, catalog).configured
    complete = now.complete and then.complete
    change = now.hour - then.hour
    sign = "-" if change < 0 else "+"
    difference = f"{sign}{dollars(abs(change), 4)}" if change else dollars(change, 4)
    return CostChange(_shown(then), _shown(now), difference if complete else None)


def _settings(stack: str, text: str | None) -> StackSettings | None:
    try:
        document = load_yaml(text) if text else None
        config = document.get("config") if isinstance(document, dict) else None
        return parse(config, stack) if isinstance(config, dict) else None
    except (yaml.YAMLError, SettingsError):
        return None


def _shown(total: Total) -> str:
    amount = dollars(total.hour, 4)
    return amount if total.complete else f"over {amount}"
