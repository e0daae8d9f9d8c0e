"""The Pulumi program: read the settings, check them, declare the stack, report what is disabled.

What Google alone knows is looked up next to the declarations: a preview must not wait for it.
"""

from pathlib import Path

import pulumi

from infra import advice
from infra.catalog import Catalog
from infra.checks import with_checks
from infra.checks.context import Context
from infra.names import names_of
from infra.program import declare
from infra.settings.base import SettingsError
from infra.settings.parse import settings_from_engine

ROOT = Path(__file__).resolve().parent.parent

stack = pulumi.get_stack()
try:
    settings = settings_from_engine()
    names = names_of(settings, stack)
    preempted = advice.look_for_preempted(settings, names.tpus(settings.tpu.slices))
    context = Context(stack, ROOT, Catalog(), names, preempted=preempted)
    if not pulumi.runtime.is_dry_run():
        advice.watch_errors()
    declare(settings, context)
    if pulumi.runtime.is_dry_run():
        advice.report(settings, context)
except SettingsError as error:
    whole = with_checks(error, lambda rest: Context(stack, ROOT, Catalog(), names_of(rest, stack)))
    raise pulumi.RunError(str(whole)) from None
