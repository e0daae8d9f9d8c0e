"""Entry point of the Pulumi program: settings, resources, outputs."""

from __future__ import annotations

import pulumi

from bootstrap.program import declare
from bootstrap.settings import BootstrapError, parse, structured

try:
    config = pulumi.runtime.get_config_env()
    declare(parse({key: structured(value) for key, value in config.items()}, pulumi.get_stack()))
except BootstrapError as error:
    raise pulumi.RunError(str(error)) from None
