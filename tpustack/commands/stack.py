"""The commands about stack files: check, cost, permissions, wheel.

With --stack, all but `check --live` take neither engine nor cloud nor credentials. Without it,
Pulumi is asked for its selected stack.
"""

import sys
from decimal import Decimal, InvalidOperation

import click
import yaml

from tpu_core.words import plural
from tpu_infra import cost, deployer
from tpu_infra.catalog import Catalog
from tpu_infra.settings import machines
from tpustack import console, errors, project, stacks
from tpustack.engine import named


@click.command("check")
@console.stack("The stack to check.", "all; with --live Pulumi's selected stack")
@click.option("--live", is_flag=True, help="Also ask Google, with your credentials.")
@console.as_json()
def check_command(stack: str | None, live: bool, as_json: bool) -> None:
    """Check stack files without engine or cloud; print every problem of all of them at once.

    With --live, Google is asked before anything is made: whether billing is on, which APIs are
    enabled, what the caller may do, what the zone offers, what quotas allow, which names are taken,
    and which organization policies refuse something.

    Exit code 0: all fine, 2: problems, 3: Google left a question open.
    """
    catalog = Catalog()
    if live:
        sys.exit(_live(named(stack), catalog, as_json=as_json))
    # One wrong file hides no other: a pipeline shows them all in one run.
    names = stacks.all_stacks() if stack is None else [stack]
    reports = [stacks.check(name, catalog) for name in names]
    if as_json:
        console.echo_json({"stacks": [report.as_json() for report in reports]})
    else:
        for report in reports:
            _print_report(report)
    if any(report.problems for report in reports):
        sys.exit(2)


def _live(stack: str, catalog: Catalog, *, as_json: bool) -> int:
    """Check a stack's file, then ask Google about it; return the exit code.

    Google is not asked about a file with problems: its answers would be about wrong names.
    """
    # They take a while to load, for which only those who ask should wait.
    from tpustack import live
    from tpustack.cloud.google import Google

    report = stacks.check(stack, catalog)
    findings: list[live.Finding] = []
    if not report.problems:
        settings = stacks.load(stack)
        target = live.Target(Google(), settings, stacks.context_of(stack, settings, catalog))
        findings = live.ask(target)
    if as_json:
        answers = [vars(finding) for finding in findings]
        console.echo_json({**report.as_json(), "live": answers})
    else:
        _print_report(report)
        for finding in findings:
            cure = f". {finding.cure}." if finding.cure else ""
            click.echo(f"  {finding.state:<8}{finding.about:<16}{finding.said}{cure}")
    return 2 if report.problems else live.exit_code(findings)


def _print_report(report: stacks.Report) -> None:
    """Print what a person must mend to standard error, all else to standard output."""
    if report.problems:
        count = plural(len(report.problems), "problem")
        click.echo(f"{report.stack}: {count} ({report.file})", err=True)
        for problem in report.problems:
            click.echo(f"  - {problem}", err=True)
    else:
        click.echo(f"{report.stack}: fine")
        for warning in report.warnings:
            click.echo(f"  warning: {warning}")


# Eleven years: a longer run is a slip of the keyboard.
_MOST_HOURS = 100_000


def _hours(ctx: click.Context, param: click.Parameter, value: str) -> Decimal:
    """Return hours as an exact number: prices are decimal, and floats would not add up."""
    try:
        hours = Decimal(value)
        fits = 0 < hours <= _MOST_HOURS
    except InvalidOperation:
        fits = False
    if not fits:
        text = f"{value!r} is not a number of hours above 0, at most {_MOST_HOURS}"
        raise click.BadParameter(text, ctx, param)
    return hours


@click.command("cost")
@console.stack("The stack.")
@click.option(
    "--hours",
    callback=_hours,
    metavar="HOURS",
    default="24",
    show_default=True,
    help="How long a run takes.",
)
@click.option(
    "--accelerator-type",
    shell_complete=console.accelerators,
    help="A TPU such as v3-32, or the GPU V100, without a stack.",
)
@click.option("--region", help="The region, without a stack.")
@click.option(
    "--capacity",
    type=click.Choice([str(capacity) for capacity in machines.Capacity]),
    help="How to buy it, without a stack.  [default: on-demand]",
)
@click.option("--count", type=click.IntRange(1, 100_000), help="How many.  [default: 1]")
@console.as_json()
def cost_command(
    stack: str | None,
    hours: Decimal,
    accelerator_type: str | None,
    region: str | None,
    capacity: str | None,
    count: int | None,
    as_json: bool,
) -> None:
    """Show what a stack costs by the hour, day and run, as it is set, on demand and as spot.

    Also the least that an epoch costs, once `tpu-training compile` has compiled the stack's job.

    With --accelerator-type and --region: what a TPU costs. A price without a source is unknown.
    """
    catalog = Catalog()
    epoch, line = None, ""
    others = {
        "--accelerator-type": accelerator_type,
        "--region": region,
        "--capacity": capacity,
        "--count": count,
    }
    given = [name for name, value in others.items() if value is not None]
    if not given:
        try:
            stack = named(stack)
        except errors.TpustackError as error:
            if stack is not None:
                raise
            way = "For a TPU without a stack use --accelerator-type and --region"
            raise type(error)(f"{str(error).rstrip('.')}. {way}") from None
        # What is not built yet costs nothing; everything else should be right first.
        settings = stacks.sound(stack, catalog)
        estimate = cost.of_stack(settings, stack, catalog, hours)
        epoch, line = stacks.epoch_cost(settings, estimate)
    elif stack is not None:
        raise errors.UsageError(
            f"{', '.join(given)} can't be combined with --stack, because the stack's settings have "
            "them. Use one or the other"
        )
    elif accelerator_type is None or region is None:
        lacking = "--region" if accelerator_type else "--accelerator-type"
        raise errors.UsageError(
            f"{', '.join(given)} without {lacking}. Use --accelerator-type and --region together, "
            "or neither, for a stack's cost"
        )
    else:
        errors.refuse([*stacks.unoffered(accelerator_type, region, catalog)])
        way = machines.Capacity(capacity or machines.Capacity.ON_DEMAND)
        estimate = cost.of_accelerator(accelerator_type, region, way, count or 1, hours, catalog)
    if as_json:
        console.echo_json({**cost.as_json(estimate), "epoch": epoch})
    else:
        columns = console.columns()
        whole = cost.table(estimate, columns)
        click.echo(whole + (f"\n\n{cost.wrapped(line, columns)}" if line else ""))


@click.command("migrate")
@click.argument("stack", shell_complete=console.stacks)
def migrate_command(stack: str) -> None:
    """Print the file of STACK for architecture compute, and what that changes.

    For TPU VMs of v5p and v6e with one host. Nothing is changed. The comments of the printed file
    say what is left out, what to delete first and what stays.
    """
    document, notes = stacks.migrated(stack, Catalog())
    for note in notes:
        click.echo(cost.wrapped(note, 80, "# ", "#   "))
    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)


@click.command("permissions")
@console.stack("The stack.")
@click.option("--look", is_flag=True, help="Only what a preview and a refresh need.")
def permissions_command(stack: str | None, look: bool) -> None:
    """Write the role that a stack's deployer needs, as a file for `gcloud iam roles create`.

    Budgets need a role on the billing account, and buckets that stay one under a condition. The
    file names both.
    """
    stack = named(stack)
    # Google's predefined roles allow more than the stack's own resources take.
    kinds = (deployer.READ,) if look else deployer.ALL
    settings = stacks.load(stack)
    permissions = deployer.permissions_of(settings)
    role = {
        "title": f"{'Previewer' if look else 'Deployer'} of tpu-stack {stack}",
        "stage": "GA",
        "includedPermissions": permissions.of_project(*kinds),
    }
    # What a role of the project can't give follows as comments, which gcloud ignores in the file.
    if permissions.billing_role:
        needed = ", ".join(permissions.of_billing_account(*kinds))
        click.echo(f"# And on the billing account {permissions.billing_role} ({needed}).")
    click.echo(yaml.safe_dump(role, sort_keys=False), nl=False)
    objects = deployer.objects_condition(settings, stack)
    if objects and not look:
        where = f"under the condition\n#   {objects}"
        click.echo(f"# And on the project {deployer.OBJECTS_ROLE}, {where}")


@click.command("wheel")
def wheel_command() -> None:
    """Build the training wheel into dist/; the stack uploads it to the bucket."""
    click.echo(project.build_wheel().relative_to(project.root()))
