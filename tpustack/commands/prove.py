"""`tpustack prove`: ask the real Google Cloud what docs/verification.md leaves open.

A proof makes one spot TPU VM and a small machine next to it, asks each claim once, deletes both and
writes what Google answered.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import click

from tpu_core import google as core
from tpu_core.words import duration, money
from tpu_infra.catalog import Catalog, entries, proofs
from tpu_infra.checks.context import without_tpus
from tpu_infra.settings.base import Problem
from tpu_infra.settings.machines import Capacity
from tpustack import console, engine, errors, live, stacks
from tpustack.cloud.google import Forbidden, Google, NotFound
from tpustack.proof.claims import run
from tpustack.proof.things import (
    LEAST_SECONDS,
    LIMIT_SECONDS,
    MACHINE_HOUR,
    Network,
    Plan,
    Proof,
    default_network,
    offered,
)

# --- What is written


def document(proof: Proof, claims: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a proof as its file has it."""
    plan = proof.plan
    made = {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "zone": plan.zone,
        "acceleratorType": plan.tpu.name,
        "runtimeVersion": plan.runtime.name,
        "versions": {"tpu-stack": version("tpu-stack"), "python": python_version()},
        "cost": {"seconds": round(proof.seconds), "dollars": f"{plan.cost(proof.seconds):.4f}"},
        "claims": list(claims),
    }
    return {**made, "digest": proofs.digest(made)}


# --- The command


def plan_of(google: Google, project: str, zone: str, network: Network, ceiling: float) -> Plan:
    """Return what a proof would make: the cheapest spot TPU of one host that the zone offers.

    Raises:
        UsageError: billing is off, the zone has no such TPU, or the ceiling is too low for one.
    """
    catalog = Catalog()
    zones = sorted({one for tpu in catalog.accelerators.values() for one in tpu.zones})
    if zone not in zones:
        errors.refuse([without_tpus("--zone", zone, zones)])
    with suppress(Forbidden):  # Not everyone may look; Google refuses the TPU VM then.
        if not google.get(f"{live.BILLING}/projects/{project}/billingInfo").get("billingEnabled"):
            why = "has no billing account, so that Google creates nothing in it"
            cure = f"Run `gcloud billing projects link {project} --billing-account ACCOUNT`"
            errors.refuse([Problem("--project", project, why, cure)])
    try:
        names = offered(google, project, zone, "acceleratorTypes", "type")
    except (NotFound, Forbidden) as error:
        if isinstance(error, Forbidden) and core.HIDDEN not in str(error):
            raise
        names = set()
    region, found = zone.rpartition("-")[0], []
    for tpu in filter(None, map(catalog.accelerators.get, names)):
        hour = catalog.prices.tpu(tpu, region, Capacity.SPOT)
        runtimes = [one for one in catalog.runtimes.values() if tpu.family in one.families]
        if hour and runtimes and tpu.hosts == 1:
            best = min(runtimes, key=lambda one: (not one.serves_grpc, one.broken))
            hour = entries.Price(hour.amount + MACHINE_HOUR, hour.source)
            found.append((hour.amount, tpu.name, tpu, best, hour))
    if not found:
        why = "offers the project no TPU of one host with a known spot price"
        errors.refuse([Problem("--zone", zone, why, "`tpustack catalog` lists zones with prices")])
    _, _, tpu, runtime, hour = min(found, key=lambda each: each[:2])
    # In this order, what is not a number stays that, and is refused.
    seconds = min(ceiling / float(hour.amount) * 3600, LIMIT_SECONDS)
    plan = Plan(project, zone, network, tpu, runtime, hour, seconds)
    if not seconds >= LEAST_SECONDS:
        least = plan.cost(LEAST_SECONDS) + Decimal("0.005")
        why = f"pays for less than {duration(LEAST_SECONDS)} of a spot {tpu.name}"
        errors.refuse([Problem("--ceiling", ceiling, why, f"Use {money(least)[1:]} or more")])
    return plan


def _place(stack: str | None, project: str | None, zone: str | None) -> tuple[str, str, Network]:
    """Return the project, the zone and the network of the options or of the stack."""
    if stack is None and project is not None and zone is not None:
        return project, zone, default_network(project)
    if project is not None or zone is not None:
        raise errors.UsageError("say where: either --stack, or --project and --zone")
    settings = stacks.load(engine.named(stack))
    network = settings.network
    if network.create:  # That one need not be there yet.
        return settings.project, settings.zone, default_network(settings.project)
    host = f"projects/{network.project or settings.project}"
    given: Network = {
        "network": f"{host}/global/networks/{network.given_name}",
        "subnetwork": f"{host}/regions/{settings.region}/subnetworks/{network.given_subnetwork}",
        "enableExternalIps": settings.tpu.external_ips,
    }
    return settings.project, settings.zone, given


_DOLLARS = click.FloatRange(0, 100, min_open=True)
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("prove")
@console.stack("Where: the stack's project, zone and existing network. It need not be up.")
@click.option("--project", help="Where, without a stack: the project, and its default network.")
@click.option("--zone", shell_complete=console.zones, help="Where, without a stack.")
@click.option("--ceiling", type=_DOLLARS, default=1.0, help="The most it costs.  [default: $1.00]")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--out", type=_FILE, default="proof.json", help="The proof.  [default: proof.json]")
def prove_command(ceiling: float, yes: bool, out: Path, **where: str | None) -> None:
    """Ask the real Google Cloud what docs/verification.md lists as open.

    It creates the zone's cheapest spot TPU VM and a small machine, tests each claim, deletes both,
    and writes proof.json and, to standard output, a text for an issue. It first shows what that
    costs, and asks. Both are deleted before the ceiling is reached, and on an interruption.

    Exit code 0: each claim is answered, 1: something could not be deleted, 3: a claim is open.
    """
    place, google = _place(**where), Google()
    if not (out.absolute().parent.is_dir() and os.access(out.absolute().parent, os.W_OK)):
        why = "is in a folder that doesn't exist, or that you can't write to"
        errors.refuse([Problem("--out", str(out), why, "Name a file in another folder")])
    plan = plan_of(google, *place, ceiling)
    proof = Proof(google, plan)
    for url in proof.earlier():
        console.say(f"{url.rpartition('/')[2]} is of an earlier proof, and is deleted first")
    console.say(
        f"A spot {plan.tpu.name} in {plan.zone} of {plan.project} with {plan.runtime.name}, and a "
        f"small machine: {money(plan.hour.amount)} an hour, so at most "
        f"{money(plan.cost(plan.seconds))} for {duration(plan.seconds)} "
        f"(price of {plan.hour.source.date}: {plan.hour.source.url})"
    )
    if not yes and not click.confirm("Create it, ask, and delete it?", err=True):
        return
    claims = run(
        proof,
        lambda one: console.say(f"{one['claim']}: {proofs.ANSWERS[one['answer']]}; {one['why']}"),
    )
    made = document(proof, claims)
    try:
        out.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    finally:
        click.echo(console.plain(proofs.issue(made)))
    sys.exit(1 if proof.left else 3 if any(one["answer"] is None for one in claims) else 0)
