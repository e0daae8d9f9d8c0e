"""`tpustack init`: writes the settings file of a new stack."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from infra.catalog import Catalog
from infra.cost.parts import of_stack
from infra.cost.table import UNKNOWN, dollars
from infra.settings.tpu import Capacity
from tpustack import options
from tpustack.errors import UsageError
from tpustack.stacks.new import (
    Answers,
    path_for,
    problem_of,
    types_in,
    write,
    zones_for,
)

_MOST_SHOWN = 12


@click.command("init")
@click.argument("name")
@click.option("--project", help="The id of the Google Cloud project.")
@click.option(
    "--zone", shell_complete=options.zones, help="Where the TPU is, for example us-central1-b."
)
@click.option(
    "--accelerator-type",
    shell_complete=options.accelerators,
    help="Type and size of the TPU, for example v2-8.",
)
@click.option(
    "--capacity",
    type=click.Choice([str(capacity) for capacity in Capacity]),
    help="How the TPU is bought.",
)
def command(
    name: str,
    project: str | None,
    zone: str | None,
    accelerator_type: str | None,
    capacity: str | None,
) -> None:
    """Write the settings file of a new stack NAME, and ask for what no option says.

    Only what the catalog allows is offered. An existing file is never touched.
    """
    path = path_for(name)
    catalog = Catalog()
    known = {
        "project": project,
        "zone": zone,
        "accelerator_type": accelerator_type,
        "capacity": capacity,
    }
    given = {key: value for key, value in known.items() if value is not None}
    wrong = (problem_of(name, key, given) for key in given)
    problems = [str(problem) for problem in dict.fromkeys(wrong) if problem]
    missing = [f"--{key.replace('_', '-')}" for key in known if key not in given]
    if missing and not sys.stdin.isatty():
        problems.append(f"say {', '.join(missing)}: there is no terminal to ask on")
    if problems:
        raise UsageError("\n".join(problems))
    answers = Answers(**_asked(name, given, catalog))
    settings = write(name, answers, catalog)
    hour = of_stack(settings, name, catalog).configured
    cost = dollars(hour.hour) if hour.complete else f"over {dollars(hour.hour)}"
    click.echo(f"stacks/{path.name} is written. It costs {cost} an hour. Next:")
    click.echo(f"  pulumi stack init {name}\n  pulumi up")


def _asked(stack: str, given: dict[str, str], catalog: Catalog) -> dict[str, str]:
    answers = dict(given)
    if "project" not in answers:
        answers["project"] = _ask(stack, "project", "Google Cloud project (its id)", answers)
    if "zone" not in answers:
        zones = zones_for(answers.get("accelerator_type"), catalog)
        _offer("Zones with TPUs", zones)
        answers["zone"] = _ask(stack, "zone", "Zone", answers)
    if "accelerator_type" not in answers:
        types = types_in(answers["zone"], catalog)
        _offer(f"TPUs in {answers['zone']}", types)
        default = types[0] if types else None
        answers["accelerator_type"] = _ask(stack, "accelerator_type", "TPU", answers, default)
    if "capacity" not in answers:
        region = answers["zone"].rpartition("-")[0]
        tpu = catalog.accelerators.get(answers["accelerator_type"])
        for way in Capacity:
            price = catalog.prices.tpu(tpu, region, way) if tpu else None
            click.echo(f"  {way}: {f'{dollars(price.amount)} an hour' if price else UNKNOWN}")
        default = str(Capacity.ON_DEMAND)
        answers["capacity"] = _ask(stack, "capacity", "Capacity", answers, default)
    return answers


def _offer(title: str, names: Sequence[str]) -> None:
    more = f", … ({len(names)} in all: `tpustack catalog`)" if len(names) > _MOST_SHOWN else ""
    click.echo(f"{title}: {', '.join(names[:_MOST_SHOWN])}{more}")


def _ask(
    stack: str, name: str, question: str, known: dict[str, str], default: str | None = None
) -> str:
    """Ask until the answer is valid."""
    while True:
        value = str(click.prompt(question, default=default)).strip()
        problem = problem_of(stack, name, {**known, name: value})
        if problem is None:
            return value
        click.echo(str(problem), err=True)
