"""`pulumi preview` of a stack with 256 slices against the same with one."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench.result import Result
from bench.sandbox import make_project, make_trainer, write_stack
from tpustack import toolchain
from tpustack.errors import TpustackError

_RUNS = 3
_MANY = 256
_TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}


def measure() -> list[Result]:
    """Both previews in turn, after one of each to warm up; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = toolchain.environment(toolchain.find(), folder / "state")
        # A preview of a new stack reads nothing from Google; any token does.
        environment |= {"GOOGLE_OAUTH_ACCESS_TOKEN": "none"}
        environment |= {"PULUMI_GCP_SKIP_REGION_VALIDATION": "true"}
        project, trainer = make_project(folder), make_trainer(folder)
        _pulumi(project, environment, "stack", "init", "local")

        def preview(slices: int) -> float:
            write_stack(project, trainer, tpu={**_TPU, "slices": slices})
            started = time.perf_counter()
            _pulumi(project, environment, "preview", "--non-interactive", "--stack", "local")
            return time.perf_counter() - started

        for slices in (1, _MANY):
            preview(slices)
        pairs = [(preview(_MANY), preview(1)) for _ in range(_RUNS)]
    ratio = statistics.median(many / one for many, one in pairs)
    return [
        Result(f"preview: {_MANY} slices against one", ratio, "ratio", goal=5.0),
        Result(f"preview: {_MANY} slices", statistics.median(many for many, _ in pairs), "s"),
    ]


def _pulumi(project: Path, environment: dict[str, str], *command: str) -> None:
    done = subprocess.run(
        ["pulumi", *command],
        cwd=project,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TpustackError(f"pulumi {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
