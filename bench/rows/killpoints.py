"""`pulumi up` and `destroy` killed a hundred times at random moments: does the stack survive?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from bench.killpoints import Killer, Life
from bench.result import Result
from bench.sandbox import make_project, make_trainer, write_stack
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.local import LocalCloudCommand

_LIVES, _KILLS = 20, 5


def measure(lives: int = _LIVES) -> list[Result]:
    """That many stacks, each killed five times on its way up and down."""
    console = Console(soft_wrap=True, highlight=False)
    told: list[tuple[Life, int]] = []
    for seed in range(lives):
        with tempfile.TemporaryDirectory() as folder:
            told.append(_live(Path(folder), seed))
        life, left = told[-1]
        console.print(
            f"[dim]{seed + 1}/{lives}: {'; '.join(life.points)}: {life.changes_after} changes "
            f"after, {left} resources and {life.processes_left} processes left[/]"
        )
    return [
        Result("kill points", sum(len(life.points) for life, _ in told), "kills"),
        Result("kill points: changes after", sum(life.changes_after for life, _ in told), "", 0),
        Result("kill points: resources left", sum(left for _, left in told), "", 0),
        Result("kill points: processes left", sum(life.processes_left for life, _ in told), "", 0),
    ]


def _live(folder: Path, seed: int) -> tuple[Life, int]:
    with LocalCloudCommand(folder / "cloud").running() as cloud:
        environment = toolchain.environment(toolchain.find(), folder / "state")
        environment |= cloud.environment()
        project = make_project(folder)
        write_stack(project, make_trainer(folder))
        before = cloud.status()["resources"]
        life = Killer(project, environment).live(
            Backend(environment, project).select("local"), seed, _KILLS
        )
        after = cloud.status()["resources"]
    left = {kind: count - before.get(kind, 0) for kind, count in after.items()}
    return life, sum(abs(count) for count in left.values())
