"""`pulumi preview` of a stack with 256 slices against the same with one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.previews import Previews
from bench.result import Result
from bench.sandbox import make_project, make_trainer, write_stack
from bench.turns import in_turn

_RUNS = 3
_MANY = 256
_TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}


def measure() -> list[Result]:
    """Both previews in turn, after one of each to warm up; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        previews = Previews(folder / "state")
        project, trainer = make_project(folder), make_trainer(folder)
        previews.add(project, "local")

        def preview(slices: int) -> float:
            write_stack(project, trainer, tpu={**_TPU, "slices": slices})
            return previews.seconds(project, "local")

        for slices in (1, _MANY):
            preview(slices)
        took = in_turn(lambda: preview(_MANY), lambda: preview(1), _RUNS)
    return [
        Result(f"preview: {_MANY} slices against one", took.ratio, "ratio", goal=5.0),
        Result(f"preview: {_MANY} slices", took.first, "s"),
    ]
