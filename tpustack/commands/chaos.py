"""`tpustack chaos`: a training that is disturbed, on the local Google Cloud."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console

from tpustack.errors import TpustackError, UsageError, require


@click.command("chaos")
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option("--soak", metavar="N", type=click.IntRange(1, 1000), help="N faults by chance.")
@click.option("--seed", default=0, show_default=True, help="Of the faults by chance.")
@click.option("--steps", type=click.IntRange(20, 100_000), help="Steps of the job.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where it works; is emptied.")
def command(
    scenario: Path | None, soak: int | None, seed: int, steps: int | None, folder: Path | None
) -> None:
    """Train on the local cloud while things go wrong; show when what went wrong.

    SCENARIO is a file for `tpustack local faults run SCENARIO`; without it, --soak makes one up.
    Ends with exit code 0 only if the job did all its steps and nothing is left over.
    """
    require("localcloud.cli", "tensorflow")
    from tpustack import project
    from tpustack.chaos import soak as by_chance
    from tpustack.chaos.run import Chaos

    if (scenario is None) == (soak is None):
        raise UsageError("expected either a SCENARIO file or --soak=N")
    console = Console(highlight=False)
    where = folder or project.demo() / "chaos"
    if soak is not None:
        scenario = where.with_name(f"{where.name}-{seed}-{soak}.yaml")
        scenario.parent.mkdir(parents=True, exist_ok=True)
        # JSON is YAML, too.
        written = json.dumps(by_chance.scenario(soak, seed), indent=1)
        scenario.write_text(written, encoding="utf-8")
        steps = steps or by_chance.steps_for(soak)
        console.print(f"{soak} faults by seed {seed}: {scenario}", soft_wrap=True)
    assert scenario is not None
    _check(scenario)
    chaos = Chaos(where, scenario, steps=steps or 200, compare=soak is not None, console=console)
    try:
        outcome = chaos.run()
    finally:
        written = json.dumps(chaos.outcome.to_dict(), indent=2)
        where.with_name(f"{where.name}.json").write_text(written + "\n", encoding="utf-8")
    console.print(outcome.table())
    if problems := outcome.problems():
        raise TpustackError("\n".join(problems))


def _check(scenario: Path) -> None:
    """Refuse a scenario with anything wrong in it before anything is started."""
    from tpustack.chaos import place
    from tpustack.cloud.local import pass_on

    if code := pass_on(["faults", "run", str(scenario), "--check"]):
        sys.exit(code)
    place.wanted(scenario)
