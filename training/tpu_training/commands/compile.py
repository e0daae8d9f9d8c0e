"""`tpu-training compile`: what a job needs and takes on a TPU, from Google's own compiler."""

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

from tpu_training.commands.arguments import Command, add_command
from tpu_training.commands.compile_cached import build_cached
from tpu_training.commands.compile_job import (
    Job,
    Problems,
    add_compile_arguments,
    build_compile_job,
    checked,
    find_tpus,
    lacking,
)
from tpu_training.commands.compile_run import Form, run, run_file
from tpu_training.compile.tpus import Tpu


def add(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "compile",
        _build,
        help="say what a job needs and takes on a TPU, without one",
        description="Compile the training step and the evaluation with Google's TPU compiler, on "
        "this machine: memory, the largest batch, the least time and price. Takes the parameters "
        "of train. Exit code 1: it does not fit.",
    )
    add_compile_arguments(parser)
    parser.add_argument("--compare", metavar="TYPES", help="TPU types side by side, with commas")
    parser.add_argument("--hlo", metavar="FILE", help="compile an HloModuleProto instead of a job")
    parser.add_argument("--stablehlo", metavar="FILE", help="compile StableHLO instead of a job")
    parser.add_argument(
        "--quick", action="store_true", help="stop after the first answer: memory and bounds"
    )
    parser.add_argument(
        "--cached", action="store_true", help="print what is known already; compile nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def _build(known: argparse.Namespace) -> Command:
    problems = Problems()
    kinds = find_tpus(known, problems)
    if known.cached:
        return build_cached(known, kinds, problems)
    form = Form(known.quick, known.json, bool(known.compare))
    file = known.hlo or known.stablehlo
    if file:
        problems.add(_file_problems(known, file))
        language: Literal["hlo", "mlir"] = "hlo" if known.hlo else "mlir"
        command: Command = partial(run_file, file, language, kinds, form)
    else:
        job = build_compile_job(known, kinds, problems)
        command = partial(_run_job, job, kinds, form)
    machine = lacking(quick=form.quick or form.compare, tensorflow=not file)
    problems.end(machine)
    return checked(machine, command)


def _run_job(job: Job | None, kinds: Sequence[Tpu], form: Form) -> int:
    assert job
    return run(job, kinds, form)


def _file_problems(known: argparse.Namespace, file: str) -> Iterable[str]:
    flag = "hlo" if known.hlo else "stablehlo"
    if known.hlo and known.stablehlo:
        yield "--hlo and --stablehlo exclude each other; give one of them"
    of_a_job = ("model", "task", "config", "data", "shape", "classes", "vocabulary", "examples")
    named = [f"--{name}" for name in of_a_job if getattr(known, name) is not None]
    if named or known.rest:
        yield (
            f"--{flag}={file} is a whole program, without {', '.join([*named, *known.rest])}; "
            "leave out one or the other"
        )
