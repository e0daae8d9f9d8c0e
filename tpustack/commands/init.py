"""`tpustack init`: makes a new stack: its settings file, its backend, its secrets provider."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import click

from infra.catalog import Catalog
from infra.cost import UNKNOWN, dollars, of_stack
from infra.settings.base import Problem
from infra.settings.machines import Capacity, RunOn
from tpustack import options
from tpustack.engine import home
from tpustack.errors import TpustackError, UsageError
from tpustack.project import BACKEND
from tpustack.stacks.new import (
    REQUIRED,
    Answers,
    owner_of,
    path_for,
    problem_of,
    types_in,
    write,
    zones_for,
)

_MOST_SHOWN = 12
# Flex-start needs one more setting (docs/tpu.md).
_OFFERED = [capacity for capacity in Capacity if capacity is not Capacity.FLEX_START]


@click.command("init")
@click.argument("name")
@click.option("--project", help="The id of the Google Cloud project.")
@click.option(
    "--zone", shell_complete=options.zones, help="Where the TPU is, for example us-central1-a."
)
@click.option(
    "--accelerator-type",
    shell_complete=options.accelerators,
    help="Type and size of the TPU, for example v5litepod-4.",
)
@click.option(
    "--capacity",
    type=click.Choice([str(capacity) for capacity in _OFFERED]),
    help="How the TPU is bought.",
)
@click.option(
    "--data",
    type=click.Path(),
    help="Folder that `tpu-training data convert` wrote. Without it the bucket must have the data.",
)
@click.option(
    "--run-on",
    type=click.Choice([str(machine) for machine in RunOn]),
    help="What trains: the VM, which drives the TPU by gRPC (the default), or the TPU VM itself, "
    "as Google documents.",
)
@click.option(
    "--owner",
    help="Whose stack it is: part of all names, so that two engineers do not collide in one "
    "project. Default: your login name, unless NAME ends in it. '' for a stack of the whole team.",
)
@click.option(
    "--backend",
    help="Where Pulumi keeps the state: gs://BUCKET, which is made if it is not there, or file "
    "for this machine alone. Default: what PULUMI_BACKEND_URL says.",
)
@click.option(
    "--secrets-provider",
    help="What encrypts secrets in the state: passphrase, or gcpkms://KEY.",
)
def command(
    name: str, backend: str | None, secrets_provider: str | None, **told: str | None
) -> None:
    """Make the stack NAME: write its settings file, choose where its state is, and make it there.

    Asks for what no option says. Only what the catalog allows is offered. An existing file is
    never touched. The file is a person's own: git ignores it.
    """
    path = path_for(name)
    catalog = Catalog()
    told["owner"] = owner_of(name) if told["owner"] is None else told["owner"]
    given = {key: value for key, value in told.items() if value is not None}
    backend = backend or os.environ.get(BACKEND)
    if secrets_provider is None and home.passphrase_is_said():
        secrets_provider = home.PASSPHRASE
    _refuse_wrong(name, given, backend, secrets_provider)
    answers = Answers(**_asked(name, given, catalog))
    place = _home(answers.project, backend, secrets_provider)
    settings = write(name, answers, catalog)
    hour = of_stack(settings, name, catalog).configured
    cost = dollars(hour.hour) if hour.complete else f"over {dollars(hour.hour)}"
    click.echo(f"stacks/{path.name} is written. It costs {cost} an hour.")
    runtime = catalog.runtime(settings.tpu.runtime_version or "")
    if runtime and runtime.tensorflow:
        click.echo(
            f"{runtime.name} has TensorFlow {runtime.tensorflow}: "
            "test your model with that version."
        )
    try:
        for done in home.make(place, name, project=settings.project, region=settings.region):
            click.echo(done)
    except TpustackError:
        # So that the same command works once the cause is removed.
        path.unlink()
        click.echo(f"stacks/{path.name} is removed again.", err=True)
        raise
    click.echo("Next:\n  pulumi preview\n  pulumi up")


def _refuse_wrong(
    stack: str, given: dict[str, str], backend: str | None, provider: str | None
) -> None:
    """Raise UsageError with all that is wrong with the options, and what is missing unasked."""
    found = [problem_of(stack, key, given) for key in given]
    found.append(home.backend_problem(backend) if backend else None)
    found.append(home.secrets_problem(provider) if provider else None)
    said = []
    if not sys.stdin.isatty():
        known = {**given, "backend": backend, "secrets_provider": provider}
        needed = (*REQUIRED, "backend", "secrets_provider")
        missing = [f"--{key.replace('_', '-')}" for key in needed if not known.get(key)]
        said += [f"say {', '.join(missing)}: there is no terminal to ask on"] * bool(missing)
        found.append(home.passphrase_problem(provider) if provider else None)
    if problems := [str(problem) for problem in dict.fromkeys(found) if problem] + said:
        raise UsageError("\n".join(problems))


def _home(project: str, backend: str | None, provider: str | None) -> home.Home:
    """Ask where the state shall be and what encrypts its secrets, as far as nothing says it."""
    backend = backend or _until_right(
        "Pulumi's state (gs://BUCKET, or file)", home.usual_backend(project), home.backend_problem
    )
    provider = provider or _until_right(
        "Secrets provider (passphrase, or gcpkms://KEY)", home.PASSPHRASE, home.secrets_problem
    )
    passphrase = None
    if provider == home.PASSPHRASE and not home.passphrase_is_said():
        passphrase = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True)
    return home.Home(backend, provider, passphrase)


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
        for way in _OFFERED:
            price = catalog.prices.tpu(tpu, region, way) if tpu else None
            click.echo(f"  {way}: {f'{dollars(price.amount)} an hour' if price else UNKNOWN}")
        default = str(Capacity.ON_DEMAND)
        answers["capacity"] = _ask(stack, "capacity", "Capacity", answers, default)
    if "data" not in answers and sys.stdin.isatty():
        question = (
            "Data (folder that `tpu-training data convert` wrote; empty: it is in the bucket)"
        )
        answers["data"] = _ask(stack, "data", question, answers, "")
    return answers


def _offer(title: str, names: Sequence[str]) -> None:
    more = f", … ({len(names)} in all: `tpustack catalog`)" if len(names) > _MOST_SHOWN else ""
    click.echo(f"{title}: {', '.join(names[:_MOST_SHOWN])}{more}")


def _ask(
    stack: str, name: str, question: str, known: dict[str, str], default: str | None = None
) -> str:
    return _until_right(
        question, default, lambda value: problem_of(stack, name, {**known, name: value})
    )


def _until_right(
    question: str, default: str | None, problem_with: Callable[[str], Problem | None]
) -> str:
    """Ask until the answer is valid."""
    while True:
        value = str(click.prompt(question, default=default)).strip()
        problem = problem_with(value)
        if problem is None:
            return value
        click.echo(str(problem), err=True)
