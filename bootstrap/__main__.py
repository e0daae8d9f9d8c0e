"""Entry point of the Pulumi program: settings, resources, outputs."""

from pathlib import Path

import pulumi

from bootstrap.program import declare
from bootstrap.settings import BootstrapError, parse
from infra.settings.parse import config_from_engine

ROOT = Path(__file__).resolve().parent.parent

try:
    declare(parse(config_from_engine(), pulumi.get_stack()), ROOT)
except BootstrapError as error:
    raise pulumi.RunError(str(error)) from None
