"""`tpu-training compile`: what a job needs and takes on a TPU, from Google's own compiler."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from tpu_training.commands import Command, add_command, add_task, build_model
from tpu_training.compile.answer import Answer, Compiled, Tpu, tpus, unknown_tpu
from tpu_training.compile.programs import JobPrograms, read_program
from tpu_training.compile.session import (
    Advice,
    CompileProgram,
    Request,
    Session,
    advise,
    answers,
    cached,
    compile_file,
    described,
    described_data,
    read_manifest,
    request,
    versions,
)
from tpu_training.compile.table import LEGEND, answer_lines, comparison_lines, misfit
from tpu_training.data.manifest import Manifest
from tpu_training.errors import EXIT_FAILURE, InputError, ParamsError
from tpu_training.models.params import Params
from tpu_training.models.registry import BUILT_IN, DEFAULT_MODEL, ModelDefinition
from tpu_training.monitoring.terminal import ProgressBar
from tpu_training.tasks import check_targets, identity


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


def build_cached(known: argparse.Namespace, kinds: Sequence[Tpu], problems: Problems) -> Command:
    """Return the command that prints what is known of the job. Raises InputError."""
    problems.add(
        f"--cached answers for a job, without --{name}"
        for name in ("hlo", "stablehlo", "compare", "quick")
        if getattr(known, name)
    )
    job = problems.of(partial(described, known.model, known.config, known.rest))
    manifest = problems.of(partial(read_described, known))
    problems.end()
    assert job
    assert manifest
    model, given = job
    given |= {"task": known.task} if known.task else {}
    examples = known.examples or manifest.split("train").examples or None

    def answer() -> int:
        tpu = kinds[0].name
        found = cached(tpu, model, given, manifest)
        if found is None and not known.json:
            unknown = f"nothing is known of this job on {tpu}: leave out --cached to compile it"
            print(unknown, file=sys.stderr)
            return EXIT_FAILURE
        about = {"model": model, "params": given, "examples": examples}
        return show([found] if found else [], about, examples, as_json=known.json)

    return answer


_FLAGS = (
    *("tpu", "compare", "model", "task", "data", "shape", "classes", "vocabulary", "examples"),
    *("config", "hlo", "stablehlo", "quick", "cached", "json", "debug"),
)

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A job to compile.

    Attributes:
        examples: How many an epoch has; None if not known.
    """

    request: Request
    model: ModelDefinition
    params: Params
    manifest: Manifest
    examples: int | None


def add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe a job and its TPU."""
    parser.add_argument("--tpu", metavar="TYPE", help="a TPU type, such as v3-8")
    parser.add_argument(
        "--model",
        help=f"{', '.join(BUILT_IN)}, or a file NAME.py of your own (default: {DEFAULT_MODEL})",
    )
    add_task(parser)
    parser.add_argument("--config", help="YAML or JSON file with parameters")
    parser.add_argument(
        "--data", help="directory or gs:// URL of the data set; its manifest is read"
    )
    parser.add_argument(
        "--shape", help="instead of --data: HEIGHTxWIDTHxCHANNELS of images or LENGTH of texts"
    )
    parser.add_argument("--classes", type=int, help="with --shape: the number of classes")
    parser.add_argument("--vocabulary", type=int, help="with --shape of texts: number of tokens")
    parser.add_argument("--examples", type=int, help="with --shape: examples of an epoch")


class Problems:
    """Collects what is wrong, so that all of it is said at once."""

    def __init__(self) -> None:
        """Begin with none."""
        self._found: list[str] = []

    def add(self, problems: Iterable[str]) -> None:
        """Add some."""
        self._found += problems

    def of(self, make: Callable[[], T]) -> T | None:
        """Return what `make` makes; None, and its problem is added, if it can't."""
        try:
            return make()
        except ParamsError as error:
            self.add(error.problems)
        except InputError as error:
            self.add([str(error)])
        return None

    def end(self, others: Iterable[str] = ()) -> None:
        """Raise ParamsError with all of them and `others`, if there are any."""
        if self._found:
            raise ParamsError(list(dict.fromkeys([*self._found, *others])))


def find_tpus(known: argparse.Namespace, problems: Problems) -> list[Tpu]:
    """Return the TPU types that --tpu and --compare name."""
    named = [("tpu", known.tpu)] if known.tpu else []
    compared = (getattr(known, "compare", None) or "").split(",")
    named += [("compare", name.strip()) for name in compared if name.strip()]
    if not named:
        problems.add(["--tpu is required: a TPU type, such as --tpu=v3-8"])
    problems.add(unknown_tpu(flag, name) for flag, name in named if name not in tpus())
    return [tpus()[name] for name in dict.fromkeys(name for _, name in named) if name in tpus()]


def build_compile_job(
    known: argparse.Namespace, kinds: Iterable[Tpu], problems: Problems
) -> Job | None:
    """Return the job to compile for `kinds`; adds what is wrong with its data and batches."""
    built = problems.of(partial(build_model, known, known.rest, _FLAGS))
    if built is None:
        problems.of(partial(read_described, known))
        return None
    model, params, given = built
    if known.examples is not None and known.examples < 1:
        problems.add([f"--examples={known.examples}: must be at least 1"])
    for tpu in kinds:
        for check in (
            partial(params.part_batch_size, tpu.replicas),
            partial(params.replica_batch_size, tpu.replicas, "evaluation_batch_size"),
        ):
            problems.of(partial(_named, tpu, check))
    manifest = problems.of(lambda: read_described(known))
    if manifest is None:
        return None
    spec = problems.of(partial(manifest.input_spec, params.image_size))
    if spec is None:
        return None
    problems.of(partial(check_targets, model, spec))
    examples = known.examples or manifest.split("train").examples or None
    asked = request(model.name, {**given, **identity(model)}, spec)
    return Job(asked, model, params, manifest, examples)


def lacking(*, quick: bool, tensorflow: bool) -> list[str]:
    """Return what this machine lacks to compile."""
    from tpu_training.compile.compiler import (
        machine_problems,
        memory_problems,
        tensorflow_problems,
    )

    found = [*machine_problems(), *memory_problems(quick)]
    return [*found, *tensorflow_problems()] if tensorflow else found


def checked(machine: Sequence[str], command: Command) -> Command:
    """Return `command` for a machine that can run it, otherwise one that says what it lacks."""

    def refuse() -> int:
        raise ParamsError(machine)

    return refuse if machine else command


def _named(tpu: Tpu, check: Callable[[], int]) -> None:
    try:
        check()
    except InputError as error:
        raise InputError(f"{tpu.name}: {error}") from error


def read_described(known: argparse.Namespace) -> Manifest:
    """Return what --data's manifest or --shape says of the data. Raises InputError."""
    if bool(known.data) == bool(known.shape):
        raise InputError(
            "expected either --data, whose manifest describes the examples, or --shape and "
            "--classes, such as --shape=224x224x3 --classes=1000"
        )
    if known.data:
        return read_manifest(known.data)
    if known.classes is None:
        raise InputError(f"--shape={known.shape} needs --classes, the number of classes")
    return described_data(known.shape, known.classes, known.vocabulary or 0)


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
    from tpu_training.compile.compiler import compile_program

    return compile_program


def _last(steps: Iterable[Answer]) -> Answer:
    *_, last = steps
    return last


def _follow(steps: Iterable[Answer], bar: Bar, examples: int | None, printing: bool) -> Answer:
    """Return the last of `steps`; print what each of them adds."""
    printed: set[str] = set()
    last = None
    for last in steps:
        lines = list(answer_lines(last, examples))
        if printing:
            bar.close()
            _print(line for line in lines if line not in printed)
        printed |= set(lines)
    assert last
    return last


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


# --- `tpu-training tune`: propose a recipe's parameters for a TPU type, from compiled facts.


def add_tune(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "tune",
        _build_tune,
        help="propose batch size, accumulation and precision for a TPU, without one",
        description="Compile the training step with Google's TPU compiler in several forms and "
        "propose batch size, accumulation and precision, each with its reason. Takes the "
        "parameters of train.",
    )
    add_compile_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def _build_tune(known: argparse.Namespace) -> Command:
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
