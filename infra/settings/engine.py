"""Reads the settings from the engine. The only place where settings and Pulumi meet."""

from __future__ import annotations

import json

import pulumi

from infra.settings import StackSettings
from infra.settings.parse import NAMESPACE, PROJECT_KEY, parse


def settings_from_engine() -> StackSettings:
    """Read the settings of the stack that the engine runs. Raises SettingsError."""
    config = {
        key: value
        for key, value in pulumi.runtime.get_config_env().items()
        if key == PROJECT_KEY or key.startswith(f"{NAMESPACE}:")
    }
    return parse({key: _structured(value) for key, value in config.items()}, pulumi.get_stack())


def _structured(value: str) -> object:
    """Return a setting as the engine got it: groups and lists are JSON, all else is plain text."""
    return json.loads(value) if value.startswith(("{", "[")) else value
