"""`tpu-training tune`: propose a recipe's parameters for a TPU type, from compiled facts."""

import argparse
import dataclasses
import json
from functools import partial
from typing import Any

from tpu_training.commands.arguments import Command, add_command
from tpu_training.commands.compile import (
    Bar,
    Job,
    Problems,
    add_compile_arguments,
    build_compile_job,
    checked,
    compiler,
    find_tpus,
    lacking,
)
from tpu_training.compile.programs import JobPrograms
from tpu_training.compile.result import Compiled
from tpu_training.compile.search import Advice, advise
from tpu_training.compile.session import Session
from tpu_training.compile.tpus import Tpu


def add(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "tune",
        _build,
        help="propose batch size, accumulation and precision for a TPU, without one",
        description="Compile the training step with Google's TPU compiler in several forms and "
        "propose batch size, accumulation and precision, each with its reason. Takes the "
        "parameters of train.",
    )
    add_compile_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def _build(known: argparse.Namespace) -> Command:
    problems = Problems()
    kinds = find_tpus(known, problems)
    job = build_compile_job(known, kinds, problems)
    machine = lacking(quick=True, tensorflow=True)
    problems.end(machine)
    assert job
    return checked(machine, partial(_tune, job, kinds[0], known.json))


def _tune(job: Job, tpu: Tpu, as_json: bool) -> int:
    bar = Bar()
    session = Session(job.request, compiler(), bar.show)

    def compile_as(part: int, accumulation: int, precision: str) -> Compiled:
        bar.show(0.5, f"{part} examples a replica at a time, {accumulation} parts, {precision}")
        params = dataclasses.replace(
            job.params, gradient_accumulation=accumulation, precision=precision
        )
        changed = {"gradient_accumulation": accumulation, "precision": precision}
        programs = JobPrograms(job.model, params, job.manifest)
        changed_session = dataclasses.replace(session, request=job.request.changed(changed))
        return changed_session.train(tpu, programs, part)

    try:
        found = list(advise(job.params, tpu, compile_as))
    finally:
        bar.close()
    print(json.dumps(_as_json(tpu, found), indent=2) if as_json else _text(tpu, found), flush=True)
    return 0


def _as_json(tpu: Tpu, found: list[Advice]) -> dict[str, Any]:
    advice = [{**dataclasses.asdict(one), "changes": one.changes} for one in found]
    return {"format": 1, "tpu": tpu.name, "advice": advice}


def _text(tpu: Tpu, found: list[Advice]) -> str:
    lines = [f"{tpu.name}, from compiled facts; nothing was measured on a TPU"]
    for one in found:
        state = f"was {one.given}" if one.changes else "as it is"
        lines.append(f"  --{one.name}={one.value}  ({state}) {one.reason}")
    flags = " ".join(f"--{one.name}={one.value}" for one in found if one.changes)
    return "\n".join([*lines, f"change: {flags or 'nothing'}"])
