"""Previews of stacks that do not exist yet, timed."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tpustack.engine import toolchain
from tpustack.errors import TpustackError


def preview_environment(state: Path) -> dict[str, str]:
    """The engine's environment with a backend in `state`."""
    # A preview of a new stack reads nothing from Google; any token does.
    return toolchain.environment(toolchain.find(), state) | {
        "GOOGLE_OAUTH_ACCESS_TOKEN": "none",
        "PULUMI_GCP_SKIP_REGION_VALIDATION": "true",
    }


class Previews:
    """`pulumi preview` with a backend in `state`; the programs get `variables` too."""

    def __init__(self, state: Path, **variables: str) -> None:
        self._environment = preview_environment(state) | variables

    def add(self, project: Path, stack: str) -> None:
        """Make a stack in the backend."""
        self._run(project, "stack", "init", stack)

    def seconds(self, project: Path, stack: str) -> float:
        """How long one preview takes."""
        started = time.perf_counter()
        self._run(project, "preview", "--non-interactive", "--stack", stack)
        return time.perf_counter() - started

    def _run(self, project: Path, *command: str) -> None:
        done = subprocess.run(
            ["pulumi", *command],
            cwd=project,
            env=os.environ | self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise TpustackError(f"pulumi {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
