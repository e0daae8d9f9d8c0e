"""The Pulumi program: read the settings, check them, declare the stack, report what is disabled."""

from __future__ import annotations

import gc
from pathlib import Path

import pulumi

from infra import enabled
from infra.catalog import Catalog
from infra.checks.context import Context
from infra.names import names_of
from infra.program import declare
from infra.settings.engine import settings_from_engine
from infra.settings.problems import SettingsError

ROOT = Path(__file__).resolve().parent.parent

# The SDK's classes live as long as the program. Collecting garbage among them again and again would
# take a fifth of its time.
gc.freeze()
gc.set_threshold(100_000)

try:
    settings = settings_from_engine()
    stack = pulumi.get_stack()
    context = Context(stack, ROOT, Catalog(), names_of(settings, stack))
    declare(settings, context)
    if pulumi.runtime.is_dry_run():
        enabled.report(settings)
except SettingsError as error:
    raise pulumi.RunError(str(error)) from None
