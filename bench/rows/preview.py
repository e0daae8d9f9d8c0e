"""`pulumi preview` of this stack against a bare program with the same Google resources."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench.result import Result
from tpustack import toolchain, wheel
from tpustack.errors import TpustackError
from tpustack.project import ROOT

_RUNS = 5
_BARE = ROOT / "bench" / "bare"


def measure() -> list[Result]:
    """Both previews in turn, after one of each to warm up; the ratio is that of each pair."""
    wheel.build()
    with tempfile.TemporaryDirectory() as folder:
        environment = toolchain.environment(toolchain.find(), Path(folder))
        # A preview of a new stack reads nothing from Google; any token does.
        environment |= {"GOOGLE_OAUTH_ACCESS_TOKEN": "none"}
        environment |= {"PULUMI_GCP_SKIP_REGION_VALIDATION": "true"}
        ours = (ROOT, "local", environment)
        bare = (_BARE, "bare", environment)
        for arguments in (ours, bare):
            _pulumi(*arguments, "stack", "init")
            _preview(*arguments)
        pairs = [(_preview(*ours), _preview(*bare)) for _ in range(_RUNS)]
    ratio = statistics.median(first / second for first, second in pairs)
    seconds = statistics.median(first for first, _ in pairs)
    return [
        Result("preview: this stack against a bare program", ratio, "ratio", goal=1.3),
        Result("preview: this stack", seconds, "s"),
    ]


def _preview(folder: Path, stack: str, environment: dict[str, str]) -> float:
    started = time.perf_counter()
    _pulumi(folder, stack, environment, "preview", "--non-interactive")
    return time.perf_counter() - started


def _pulumi(folder: Path, stack: str, environment: dict[str, str], *command: str) -> None:
    done = subprocess.run(
        ["pulumi", *command, "--stack", stack],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TpustackError(f"pulumi {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
