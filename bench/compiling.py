"""Compile jobs for TPUs, as `tpu-training compile` does, without its cache."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tpu_training.commands.compile import (
    Job,
    Problems,
    add_compile_arguments,
    build_compile_job,
    compiler,
)
from tpu_training.compile.programs import JobPrograms
from tpu_training.compile.result import Compiled
from tpu_training.compile.session import Session
from tpu_training.compile.tpus import Tpu, tpus


@contextmanager
def no_cache() -> Iterator[None]:
    """Keep answers in a folder of their own, which is empty and is removed."""
    before = os.environ.get("XDG_CACHE_HOME")
    with TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


class Bench:
    """A job on a TPU type.

    Args:
        tpu: the TPU type's name.
        arguments: those of `tpu-training compile`.
    """

    def __init__(self, tpu: str, arguments: Sequence[str]) -> None:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        add_compile_arguments(parser)
        known, rest = parser.parse_known_args(arguments)
        known.rest = rest
        problems = Problems()
        self.tpu: Tpu = tpus()[tpu]
        job = build_compile_job(known, [self.tpu], problems)
        problems.end()
        assert job
        self.job: Job = job
        self._session = Session(job.request, compiler(), lambda *_: None)
        self._programs = JobPrograms(job.model, job.params, job.manifest)

    @property
    def part(self) -> int:
        """Examples that a replica processes at a time."""
        return self.job.params.part_batch_size(self.tpu.replicas)

    def step(self, part: int | None = None, *, full: bool = False) -> Compiled:
        """Return the compiled training step."""
        return self._session.train(self.tpu, self._programs, part or self.part, full=full)


RECIPES = Path(__file__).parent.parent / "training" / "recipes"
# Each recipe with the data that it is for.
JOBS = {
    "mnist": ("--shape=28x28x1", "--classes=10"),
    "resnet-fashion-mnist": ("--shape=28x28x1", "--classes=10"),
    "bert-reviews": ("--shape=128", "--classes=2", "--vocabulary=8192"),
    "resnet50-imagenet": ("--shape=224x224x3", "--classes=1000"),
}


def recipe(name: str) -> list[str]:
    """Return the arguments of a recipe."""
    return [f"--config={RECIPES / name}.yaml", *JOBS[name]]
