"""Entry point of the Pulumi program: settings, checks, resources, outputs."""

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

# Google's classes are loaded from here on, and they stay: to look through them for garbage time and
# again would take a fifth of the program's time.
gc.freeze()
gc.set_threshold(100_000)
try:
    settings = settings_from_engine()
    stack = pulumi.get_stack()
    root = Path(__file__).resolve().parent.parent
    declare(settings, Context(stack, root, Catalog(), names_of(settings, stack)))
    if pulumi.runtime.is_dry_run():
        enabled.report(settings)
except SettingsError as error:
    raise pulumi.RunError(str(error)) from None
