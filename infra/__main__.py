"""The Pulumi program: read the settings, check them, declare the stack, report what is disabled.

What Google alone knows is looked up next to the declarations: a preview must not wait for it.
"""

from pathlib import Path

import pulumi

from infra import advice, catalog, checks, names, program
from infra.settings import base, parse

ROOT = Path(__file__).resolve().parent.parent

stack = pulumi.get_stack()
try:
    settings = parse.settings_from_engine()
    own = names.names_of(settings, stack)
    preempted = advice.look_for_preempted(settings, own.tpus(settings.tpu.slices))
    context = checks.Context(stack, ROOT, catalog.Catalog(), own, preempted=preempted)
    if not pulumi.runtime.is_dry_run():
        advice.watch_errors()
    program.declare(settings, context)
    if pulumi.runtime.is_dry_run():
        advice.report(settings, context)
except base.SettingsError as error:
    whole = checks.with_checks(
        error,
        lambda rest: checks.Context(stack, ROOT, catalog.Catalog(), names.names_of(rest, stack)),
    )
    raise pulumi.RunError(str(whole)) from None
