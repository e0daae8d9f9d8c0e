"""`tpustack settings`: lists every setting."""

from __future__ import annotations

import json

import click

from infra.settings.reference import all_settings
from tpustack.reference import facts, settings_page


@click.command("settings")
@click.option("--json", "as_json", is_flag=True, help="Print the reference as JSON.")
@click.option("--markdown", "as_page", is_flag=True, help="Print the page docs/settings.md.")
def command(as_json: bool, as_page: bool) -> None:
    """List every setting of a stack file: type, default, range and description."""
    if as_json and as_page:
        raise click.UsageError("--json and --markdown exclude each other")
    if as_json:
        document = {"settings": [setting.as_json() for setting in all_settings()]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    elif as_page:
        click.echo(settings_page(), nl=False)
    else:
        for setting in all_settings():
            click.echo(f"{setting.path}  ({facts(setting)})")
            click.echo(click.wrap_text(setting.description, 96, "    ", "    "))
