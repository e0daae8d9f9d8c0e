"""The steps of all models and recipes, compiled for TPUs, against recorded figures of memory.

`python -m tests.steps` rewrites the figures, in tests/steps.yaml.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tpu_training.compile.answer import Compiled, Tpu, tpus
from tpu_training.compile.compiler import compile_program, versions
from tpu_training.compile.session import described_data, topology_of
from tpu_training.data.manifest import Manifest
from tpu_training.errors import TrainingError
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import ModelDefinition, load_model
from tpu_training.tasks import with_task

if TYPE_CHECKING:
    from tpu_training.compile.answer import Program


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


FILE = Path(__file__).with_name("steps.yaml")
RECIPES = Path(__file__).parents[1] / "training" / "recipes"
KINDS = ("train", "evaluate")
# The smallest type of each generation with eight replicas.
TYPES = {
    "v2": "v2-8",
    "v3": "v3-8",
    "v4": "v4-16",
    "v5e": "v5litepod-8",
    "v5p": "v5p-16",
    "v6e": "v6e-8",
}
REPLICAS = 8
_TOLERANCE = 0.05
_MIB = 1 << 20
_WORDS = {"train": "training step", "evaluate": "evaluation step"}


@dataclass(frozen=True)
class Job:
    """A job whose steps are compiled.

    Attributes:
        always: The generations for which each run of the tests compiles it; `make bench` does all.
        figures: The recorded bytes, by step and generation.
    """

    name: str
    model: ModelDefinition
    params: Params
    manifest: Manifest
    always: tuple[str, ...]
    figures: Mapping[str, Mapping[str, int]]


def content() -> dict[str, Any]:
    """Return steps.yaml."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


@functools.cache
def jobs() -> dict[str, Job]:
    """Return all jobs of steps.yaml by name."""
    return {name: _job(name, described) for name, described in content()["jobs"].items()}


def _job(name: str, described: Mapping[str, Any]) -> Job:
    config = dict(described.get("params", {}))
    if recipe := described.get("recipe"):
        config |= yaml.safe_load((RECIPES / recipe).read_text(encoding="utf-8"))
    model = with_task(load_model(config.pop("model")), config.pop("task", None))
    return Job(
        name,
        model,
        build_params(config, (), (), model.params),
        described_data(**described["data"]),
        tuple(described.get("always", TYPES)),
        described.get("bytes", {}),
    )


@functools.cache
def program(name: str, kind: str, replicas: int = REPLICAS) -> Program:
    """Return a job's step; all generations are given the same one."""
    from tpu_training.compile.lowering import evaluation_program, train_program

    job, make = jobs()[name], {"train": train_program, "evaluate": evaluation_program}[kind]
    return make(job.model, job.params, job.manifest, replicas)


def compiled(name: str, kind: str, tpu: Tpu) -> Compiled:
    """Compile a job's step in the quick form."""
    return compile_program(program(name, kind, tpu.replicas), topology_of(tpu))


def problems(name: str, kind: str, generations: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence for each of `generations` that a job's step no longer suits."""
    figures = jobs()[name].figures.get(kind, {})
    for generation in generations:
        tpu = tpus()[TYPES[generation]]
        try:
            needed = compiled(name, kind, tpu)
        except TrainingError as error:
            yield f"{name}: {error}"
            return
        problem = judge(needed, figures.get(generation) if figures_hold() else None)
        if problem:
            yield f"{name}: the {_WORDS[kind]} {problem}"


def judge(needed: Compiled, recorded: int | None) -> str:
    """Return what is wrong with a compiled step, whose need of memory was `recorded`; or ""."""
    tpu, mib = needed.topology.accelerator_type, needed.needed_bytes / _MIB
    if not needed.fits:
        return (
            f"needs {mib:,.1f} MiB of a core of {tpu}, which has {needed.limit_bytes / _MIB:,.1f}"
        )
    change = needed.needed_bytes / recorded - 1 if recorded else 0.0
    if abs(change) < _TOLERANCE:
        return ""
    more = "more" if change > 0 else "less"
    return (
        f"needs {mib:,.1f} MiB of a core of {tpu}, {abs(change):.0%} {more} than the "
        f"{(recorded or 0) / _MIB:,.1f} MiB recorded in tests/steps.yaml; if that is meant, write "
        "them again: .venv/bin/python -m tests.steps"
    )


def figures_hold() -> bool:
    """Return whether the figures are those of the installed compiler and TensorFlow.

    Each version of libtpu lays out memory in its own way.
    """
    recorded, installed = content()["versions"], versions()
    return all(recorded[name] == installed[name] for name in recorded)


def main() -> None:
    """Write the figures of all jobs, steps and generations."""
    described = content()
    described["versions"] = {name: versions()[name] for name in ("tensorflow", "libtpu")}
    for name, job in described["jobs"].items():
        job["bytes"] = {}
        for kind in KINDS:
            needs = {
                generation: compiled(name, kind, tpus()[tpu]).needed_bytes
                for generation, tpu in TYPES.items()
            }
            job["bytes"][kind] = needs
            print(name, kind, needs, flush=True, file=sys.stderr)
    head = FILE.read_text(encoding="utf-8").partition("\n\n")[0]
    body = yaml.safe_dump(described, sort_keys=False, default_flow_style=None)
    FILE.write_text(f"{head}\n\n{body}", encoding="utf-8")


if __name__ == "__main__":
    main()
