"""Entry point of the Pulumi program: settings, resources, outputs."""

from pathlib import Path

import pulumi

from tpu_bootstrap.program import declare
from tpu_bootstrap.settings import BootstrapError, parse
from tpu_infra.settings.parse import config_from_engine

ROOT = Path(__file__).resolve().parent.parent

try:
    declare(parse(config_from_engine(), pulumi.get_stack()), ROOT)
except BootstrapError as error:
    raise pulumi.RunError(str(error)) from None
