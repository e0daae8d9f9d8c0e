"""Entry point of the Pulumi program: settings, resources, outputs."""

from __future__ import annotations

from pathlib import Path

import pulumi

from bootstrap.program import declare
from bootstrap.settings import BootstrapError, parse, structured

ROOT = Path(__file__).resolve().parent.parent

try:
    config = pulumi.runtime.get_config_env()
    settings = parse({key: structured(value) for key, value in config.items()}, pulumi.get_stack())
    declare(settings, ROOT)
except BootstrapError as error:
    raise pulumi.RunError(str(error)) from None
