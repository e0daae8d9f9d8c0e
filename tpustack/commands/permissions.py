"""`tpustack permissions`: the role that a stack's deployer needs, as a file for gcloud."""

from __future__ import annotations

import click
import yaml

from infra.deployer import ALL, OBJECTS_ROLE, READ, objects_condition, permissions_of
from tpustack import console
from tpustack.stacks.files import load


@click.command("permissions")
@console.stack("The stack.", required=True)
@click.option("--look", is_flag=True, help="Only what a preview and a refresh need.")
def command(stack: str, look: bool) -> None:
    """Write the role that a stack's deployer needs, as a file for `gcloud iam roles create`.

    Budgets need a role on the billing account, and buckets that stay one under a condition. The
    file names both.
    """
    kinds = (READ,) if look else ALL
    settings = load(stack)
    permissions, objects = permissions_of(settings), objects_condition(settings, stack)
    role = {
        "title": f"{'Previewer' if look else 'Deployer'} of tpu-stack {stack}",
        "stage": "GA",
        "includedPermissions": permissions.of_project(*kinds),
    }
    if permissions.billing_role:
        needed = ", ".join(permissions.of_billing_account(*kinds))
        click.echo(f"# And on the billing account {permissions.billing_role} ({needed}).")
    click.echo(yaml.safe_dump(role, sort_keys=False), nl=False)
    if objects and not look:
        click.echo(f"# And on the project {OBJECTS_ROLE}, under the condition\n#   {objects}")
