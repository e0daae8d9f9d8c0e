"""Lives of a stack whose engine is killed again and again, at moments that a seed decides."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tpustack.engine.stack import Stack

_BEGINS = re.compile(r"(?:gcp|tpu-stack|pulumi-python):\S+ +(\S+) (creating|deleting) \(0s\)")
_MARK = "TPUSTACK_KILLED"
# How many steps may begin before it is killed, and how many seconds after that.
_MOST_STEPS, _LONGEST_PAUSE = 6, 1.5
_GRACE = 20.0


@dataclass
class Life:
    """How a stack was killed, and what came of it."""

    seed: int
    points: list[str] = field(default_factory=list)
    """What the engine was doing when it was killed."""
    changes_after: int = -1
    """What an update still changed after the one that converged."""
    processes_left: int = -1


class Killer:
    """Runs the command line on a stack and kills it.

    Args:
        project: the folder of Pulumi.yaml.
        environment: what the command gets in addition to this process's own variables.
    """

    def __init__(self, project: Path, environment: Mapping[str, str]) -> None:
        self._project = project
        self._mark = {_MARK: str(project)}
        self._environment = {**os.environ, **environment, **self._mark}

    def live(self, engine: Stack, seed: int, kills: int) -> Life:
        """Up and down again, killed `kills` times in all; the last time is while it goes."""
        chance, life = random.Random(seed), Life(seed)
        for _ in range(kills - 1):
            self._kill("up", engine, life, chance)
        engine.up(_ignore)
        life.changes_after = engine.up(_ignore).changed
        self._kill("destroy", engine, life, chance)
        engine.destroy(_ignore)
        life.processes_left = len(self.left())
        return life

    def left(self) -> list[psutil.Process]:
        """Processes of killed commands that still run after a while."""
        deadline = time.monotonic() + _GRACE
        while (found := self._found()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _found(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if self._mark.items() <= process.environ().items():
                    found.append(process)
        return found

    def _kill(self, command: str, engine: Stack, life: Life, chance: random.Random) -> None:
        """Kill a command some time after a step began; one that is faster ends on its own."""
        steps, pause = chance.randint(1, _MOST_STEPS), chance.uniform(0, _LONGEST_PAUSE)
        options = ["--yes", "--skip-preview", "--non-interactive", "--color=never"]
        run = subprocess.Popen(
            ["pulumi", command, *options, "--stack", engine.name],
            cwd=self._project,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert run.stdout is not None
        last = "nothing"
        for line in run.stdout:
            if begins := _BEGINS.search(line):
                last, steps = f"{begins[2]} {begins[1]}", steps - 1
                if steps == 0:
                    time.sleep(pause)
                    break
        run.kill()
        run.stdout.close()
        run.wait()
        # The program, its language host and the provider would keep running for minutes. When a
        # pipeline's job or a terminal is killed, they are killed too.
        for process in self._found():
            with contextlib.suppress(psutil.Error):
                process.kill()
        life.points.append(f"{command}: {last} + {pause:.1f} s")
        recovery = engine.recovery(_ignore)
        recovery.release(recovery.locks() or [])
        recovery.take_up()


def _ignore(line: str) -> None:
    """The engine's output."""
