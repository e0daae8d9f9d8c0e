"""The Pulumi program: read the settings, check them, declare the stack, report what is disabled."""

from __future__ import annotations

from pathlib import Path

import pulumi

from infra import closed, cures, data_set, enabled, fits, offered, taken
from infra.catalog import Catalog
from infra.checks import with_checks
from infra.checks.context import Context
from infra.names import names_of
from infra.program import declare
from infra.settings.engine import settings_from_engine
from infra.settings.problems import SettingsError

ROOT = Path(__file__).resolve().parent.parent

stack = pulumi.get_stack()
try:
    settings = settings_from_engine()
    names = names_of(settings, stack)
    preempted = taken.look(settings, names.tpus(settings.tpu.slices))
    context = Context(stack, ROOT, Catalog(), names, preempted=preempted)
    if not pulumi.runtime.is_dry_run():
        cures.report()
    declare(settings, context)
    if pulumi.runtime.is_dry_run():
        enabled.report(settings)
        data_set.report(settings, context.names.bucket)
        closed.report(settings, context.names.bucket)
        offered.report(settings, context)
        fits.report(settings, ROOT)
except SettingsError as error:
    whole = with_checks(error, lambda rest: Context(stack, ROOT, Catalog(), names_of(rest, stack)))
    raise pulumi.RunError(str(whole)) from None
