"""Compile a job or a file for TPU types and print what is known, as soon as it is known."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tpu_training.commands.compile_job import Job
from tpu_training.compile.answer import Answer
from tpu_training.compile.job_programs import JobPrograms
from tpu_training.compile.libtpu.files import read_program
from tpu_training.compile.misfit import misfit
from tpu_training.compile.request import Request
from tpu_training.compile.run import CompileProgram, Session, answers, compile_file
from tpu_training.compile.table import (
    LEGEND,
    comparison_lines,
    estimate_lines,
    evaluation_lines,
    largest_lines,
    memory_lines,
    step_lines,
)
from tpu_training.compile.tpus import Tpu
from tpu_training.compile.versions import versions
from tpu_training.errors import EXIT_FAILURE
from tpu_training.monitoring.terminal import ProgressBar

# Changes of the JSON that a reader would notice get a new number.
_FORMAT = 1
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


class Bar:
    """Shows progress on standard error, if that is a terminal."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None

    def show(self, part: float, text: str) -> None:
        """Draw the bar."""
        if self._bar:
            self._bar.show(part, text)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.clear()


@dataclass(frozen=True)
class Form:
    """How much is compiled, and how it is printed.

    Attributes:
        quick: Stop after memory and bounds.
        as_json: Print one document at the end.
        compare: Print a line for each TPU type, from quick answers.
    """

    quick: bool
    as_json: bool
    compare: bool


def run(job: Job, kinds: Sequence[Tpu], form: Form) -> int:
    """Answer for each TPU type; return the exit code."""
    programs = JobPrograms(job.model, job.params, job.manifest)
    accumulation = job.params.gradient_accumulation
    quick = form.quick or form.compare

    def answer(session: Session, tpu: Tpu) -> Iterator[Answer]:
        part = job.params.part_batch_size(tpu.replicas)
        return answers(session, tpu, programs, part, accumulation, quick=quick)

    return _answer(job.request, kinds, answer, form, _describe(job), job.examples)


def run_file(file: str, language: Literal["hlo", "mlir"], kinds: Sequence[Tpu], form: Form) -> int:
    """Answer for the program in `file`; return the exit code."""
    program = read_program(file, language)
    quick = form.quick or form.compare

    def answer(session: Session, tpu: Tpu) -> Iterator[Answer]:
        return compile_file(session, tpu, program, quick=quick)

    request = Request(file, program.hlo, {}, None)
    return _answer(request, kinds, answer, form, {"file": file, "format": language}, None)


def _answer(
    request: Request,
    kinds: Sequence[Tpu],
    answer: Callable[[Session, Tpu], Iterator[Answer]],
    form: Form,
    about: dict[str, Any],
    examples: int | None,
) -> int:
    bar = Bar()
    session = Session(request, compiler(), bar.show)
    try:
        if form.compare:
            found = [_last(answer(session, tpu)) for tpu in kinds]
            bar.close()
            if not form.as_json:
                _print(comparison_lines(found, examples))
        else:
            found = [
                _follow(answer(session, tpu), bar, examples, not form.as_json) for tpu in kinds
            ]
    finally:
        bar.close()
    _end(found, form.as_json, about, examples)
    good = any if form.compare else all
    return 0 if good(answer.fits for answer in found) else EXIT_FAILURE


def show(
    found: Sequence[Answer], about: dict[str, Any], examples: int | None, *, as_json: bool
) -> int:
    """Print answers that are known already; return the exit code."""
    for answer in found:
        _follow([answer], Bar(), examples, not as_json)
    _end(found, as_json, about, examples)
    return 0 if all(answer.fits for answer in found) else EXIT_FAILURE


def compiler() -> CompileProgram:
    """Return Google's TPU compiler."""
    from tpu_training.compile.libtpu.compiler import compile_program

    return compile_program


def _last(steps: Iterable[Answer]) -> Answer:
    *_, last = steps
    return last


def _follow(steps: Iterable[Answer], bar: Bar, examples: int | None, printing: bool) -> Answer:
    """Return the last of `steps`; print what each of them adds."""
    printed: set[str] = set()
    last = None
    for last in steps:
        lines = [line for part in _parts(last, examples) for line in part]
        if printing:
            bar.close()
            _print(line for line in lines if line not in printed)
        printed |= set(lines)
    assert last
    return last


def _parts(answer: Answer, examples: int | None) -> Iterator[Iterable[str]]:
    yield memory_lines(answer)
    yield step_lines(answer, examples)
    yield evaluation_lines(answer)
    yield largest_lines(answer)
    yield estimate_lines(answer)


def _end(
    found: Sequence[Answer], as_json: bool, about: dict[str, Any], examples: int | None
) -> None:
    if not as_json:
        _print([LEGEND])
        return
    content = {
        "format": _FORMAT,
        "versions": versions(),
        "job": about,
        "legend": LEGEND,
        "answers": [{**answer.as_json(examples), "misfit": misfit(answer)} for answer in found],
    }
    print(json.dumps(content, indent=2), flush=True)


def _describe(job: Job) -> dict[str, Any]:
    return {
        "model": job.request.model,
        "params": dataclasses.asdict(job.params),
        "data": job.request.spec and dataclasses.asdict(job.request.spec),
        "examples": job.examples,
    }


def _print(lines: Iterable[str]) -> None:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in lines:
        wrong = "DOES NOT FIT" in line or "  NO  " in line
        print(f"{_RED}{line}{_PLAIN}" if wrong and coloured else line, flush=True)
