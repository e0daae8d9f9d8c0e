"""Reads the settings from the engine. The only place where settings and Pulumi meet."""

from __future__ import annotations

import json

import pulumi

from infra.settings import StackSettings
from infra.settings.parse import parse


def settings_from_engine() -> StackSettings:
    """Read the settings of the stack that the engine runs. Raises SettingsError."""
    return parse(config_from_engine(), pulumi.get_stack())


def config_from_engine() -> dict[str, object]:
    """Return the configuration as the stack's file has it: what is secret is so as a whole."""
    secret = pulumi.runtime.get_config_secret_keys_env()
    return {
        key: {"secure": ""} if key in secret else _structured(value)
        for key, value in pulumi.runtime.get_config_env().items()
    }


def _structured(value: str) -> object:
    """Return a setting as the engine got it: groups and lists are JSON, all else is plain text."""
    return json.loads(value) if value.startswith(("{", "[")) else value
