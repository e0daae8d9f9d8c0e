"""`tpu-training compile`: what a job needs and takes on a TPU, from Google's own compiler.

Here are its arguments and what it prints; what is asked of the compiler is in compile/session.py.
Wrong arguments, data that does not fit the model and what the machine lacks are one message.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tpu_training import commands, errors, tasks
from tpu_training.compile import compiler, session as sessions, table
from tpu_training.compile.answer import Answer, Tpu, tpus, unknown_tpu
from tpu_training.compile.programs import JobPrograms, read_program
from tpu_training.data.manifest import Manifest
from tpu_training.models.params import JAX, TENSORFLOW, Params
from tpu_training.models.registry import ModelDefinition
from tpu_training.monitoring import terminal

# Changes of the JSON that a reader would notice get a new number.
_FORMAT = 1
# What describes a job, and so does not go with a whole program in a file.
_OF_A_JOB = ("model", "task", "config", "data", "shape", "classes", "vocabulary", "examples")

T = TypeVar("T")


def add(modes: Any) -> None:
    """Add the parser."""
    parser = commands.add_command(
        modes,
        "compile",
        _build,
        help="show what a training needs on a TPU, without one",
        description="Compile the training step and the evaluation with Google's TPU compiler, on "
        "this machine. Shows memory, the largest batch, and the least time and "
        "price. Takes the parameters of train. Exit code 1: it doesn't fit.",
    )
    add_compile_arguments(parser)
    option, switch = parser.add_argument, partial(parser.add_argument, action="store_true")
    option("--compare", metavar="TYPES", help="compare TPU types, separated by commas")
    option("--stablehlo", metavar="FILE", help="compile StableHLO instead of a training")
    switch("--quick", help="stop after the first answer: memory and bounds")
    switch("--cached", help="print stored answers and compile nothing")
    switch("--json", help="print JSON")


def add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe a job and its TPU."""
    option = parser.add_argument
    option("--tpu", metavar="TYPE", help="a TPU type, such as v3-8")
    commands.add_model(parser)
    option("--config", help="YAML or JSON file with parameters")
    option("--data", help="directory or gs:// URL of the dataset, whose manifest is read")
    option("--shape", help="instead of --data: HEIGHTxWIDTHxCHANNELS of images or LENGTH of texts")
    option(
        "--classes", type=int, help="with --shape: the number of classes; not for language models"
    )
    option("--vocabulary", type=int, help="with --shape of texts: the number of tokens")
    option("--examples", type=int, help="with --shape: the examples of an epoch")


@dataclass(frozen=True)
class Job:
    """A job to compile.

    Attributes:
        examples: How many an epoch has; None if not known.
    """

    request: sessions.Request
    programs: JobPrograms
    examples: int | None


class Problems:
    """Collects what is wrong, so that one message names all of it."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, problems: Iterable[str]) -> None:
        """Add some."""
        self._found += problems

    def of(self, make: Callable[[], T]) -> T | None:
        """Return what `make` makes; None, and its problem is added, if it can't."""
        try:
            return make()
        except errors.ParamsError as error:
            self.add(error.problems)
        except errors.InputError as error:
            self.add([str(error)])
        return None

    def end(self, others: Iterable[str] = ()) -> None:
        """Raise ParamsError with all of them and `others`, if there are any."""
        if self._found:
            raise errors.ParamsError(list(dict.fromkeys([*self._found, *others])))


def _build(known: argparse.Namespace) -> commands.Command:
    problems = Problems()
    kinds = find_tpus(known, problems)
    if known.cached:
        problems.add(["--cached needs a training; omit --stablehlo"] if known.stablehlo else ())
        problems.end()
        return partial(_show_cached, kinds, known)
    job = None
    if known.stablehlo:
        problems.add(_file_problems(known))
    else:
        job = build_compile_job(known, kinds, problems)
    machine = list(compiler.machine_problems(lowers=not known.stablehlo))
    problems.end(machine)
    if machine:
        # Only the run needs the compiler: a command line is checked on any machine.
        return partial(_refuse, machine)
    if job is None:
        return partial(_run_file, kinds, known)
    return partial(_run_job, job, kinds, known)


def _refuse(problems: Sequence[str]) -> int:
    raise errors.ParamsError(problems)


def find_tpus(known: argparse.Namespace, problems: Problems) -> list[Tpu]:
    """Return the TPU types that --tpu and --compare name, each once, in the order given."""
    named = [("tpu", known.tpu)] if known.tpu else []
    named += [("compare", name.strip()) for name in (known.compare or "").split(",")]
    named = [(flag, name) for flag, name in named if name]
    if not named:
        problems.add(["--tpu is required: a TPU type, such as --tpu=v3-8"])
    problems.add(unknown_tpu(flag, name) for flag, name in named if name not in tpus())
    return [tpus()[name] for name in dict.fromkeys(name for _, name in named) if name in tpus()]


def build_compile_job(
    known: argparse.Namespace, kinds: Iterable[Tpu], problems: Problems
) -> Job | None:
    """Return the job to compile for `kinds`; adds what is wrong with its data and batches.

    None if the model, the parameters or the data are not known: then there is nothing to check a
    batch against. The data is described even so, to name all problems at once.
    """
    built = problems.of(partial(commands.build_model, known, known.rest))
    if built is None:
        problems.of(partial(_described_data, known))
        return None
    model, params, given = built
    if known.examples is not None and known.examples < 1:
        problems.add([f"--examples={known.examples}: must be at least 1"])
    # The batch of each type must divide: --compare takes types with other numbers of replicas.
    for tpu in kinds:
        problems.add(_backend_problems(params, tpu))
        problems.of(partial(_divide, params, tpu))
        problems.of(partial(_divide, params, tpu, evaluation=True))
    manifest = problems.of(partial(_described_data, known, model))
    if manifest is None:
        return None
    spec = problems.of(partial(manifest.input_spec, params.image_size))
    if spec is None:
        return None
    problems.of(partial(tasks.check_targets, model, spec))
    examples = known.examples or manifest.split("train").examples or None
    asked = sessions.request(model.name, {**given, **tasks.identity(model)}, spec)
    return Job(asked, JobPrograms(model, params, manifest), examples)


def _backend_problems(params: Params, tpu: Tpu) -> Iterator[str]:
    """Yield that TensorFlow can't drive the TPU: the compiler would take its step all the same."""
    if params.backend == TENSORFLOW and not tpu.tensorflow:
        why = "where Google supports JAX and PyTorch"
        if tpu.hosts > 1:
            why = f"because it drives only the chips of its own machine, one of {tpu.hosts}"
        yield f"--backend={TENSORFLOW}: doesn't run on --tpu={tpu.name}, {why}; use --backend={JAX}"


def _divide(params: Params, tpu: Tpu, evaluation: bool = False) -> None:
    """Raise InputError if a batch does not divide among the TPU's replicas."""
    try:
        if evaluation:
            params.replica_batch_size(tpu.replicas, "evaluation_batch_size")
        else:
            params.part_batch_size(tpu.replicas)
    except errors.InputError as error:
        raise errors.InputError(f"{tpu.name}: {error}") from error


def _described_data(known: argparse.Namespace, model: ModelDefinition | None = None) -> Manifest:
    """Return what --data's manifest or --shape says of the data. Raises InputError."""
    if bool(known.data) == bool(known.shape):
        raise errors.InputError(
            "expected either --data, whose manifest describes the examples, or --shape and "
            "--classes, such as --shape=224x224x3 --classes=1000"
        )
    if known.data:
        return sessions.read_manifest(known.data)
    classes = known.classes
    if classes is None and model and tasks.makes_targets(model):
        classes = known.vocabulary or 1  # Nothing is learned of classes.
    if classes is None:
        raise errors.InputError(f"--shape={known.shape} needs --classes, the number of classes")
    return sessions.described_data(known.shape, classes, known.vocabulary or 0)


def _file_problems(known: argparse.Namespace) -> Iterable[str]:
    """Yield which flags have no meaning for a program in a file."""
    named = [f"--{name}" for name in _OF_A_JOB if getattr(known, name) is not None]
    if named or known.rest:
        yield (
            f"--stablehlo={known.stablehlo} is a whole program; omit it, or omit "
            f"{', '.join([*named, *known.rest])}"
        )


def _run_job(job: Job, kinds: Sequence[Tpu], known: argparse.Namespace) -> int:
    params = job.programs.params

    def answer(session: sessions.Session, tpu: Tpu, quick: bool) -> Iterator[Answer]:
        part = params.part_batch_size(tpu.replicas)
        accumulation = params.gradient_accumulation
        return sessions.answers(session, tpu, job.programs, part, accumulation, quick=quick)

    about = {
        "model": job.request.model,
        "params": dataclasses.asdict(params),
        "data": job.request.spec and dataclasses.asdict(job.request.spec),
        "examples": job.examples,
    }
    return _answer(job.request, kinds, answer, known, about, job.examples)


def _run_file(kinds: Sequence[Tpu], known: argparse.Namespace) -> int:
    program = read_program(known.stablehlo)

    def answer(session: sessions.Session, tpu: Tpu, quick: bool) -> Iterator[Answer]:
        return sessions.compile_file(session, tpu, program, quick=quick)

    request = sessions.Request(known.stablehlo, program.hlo, {}, None)
    return _answer(request, kinds, answer, known, {"file": known.stablehlo}, None)


def _answer(
    request: sessions.Request,
    kinds: Sequence[Tpu],
    answer: Callable[[sessions.Session, Tpu, bool], Iterator[Answer]],
    known: argparse.Namespace,
    about: dict[str, Any],
    examples: int | None,
) -> int:
    """Answer for each TPU type and print it; return the exit code.

    Of types side by side, which need not all fit, only the quick answers are compiled.
    """
    bar = terminal.ProgressBar(sys.stderr)
    session = sessions.Session(request, bar.show)
    quick = known.quick or bool(known.compare)
    # A type that does not fit is an answer, too; only what is wrong with the program ends all.
    try:
        steps = (answer(session, tpu, quick) for tpu in kinds)
        printing = not known.json and not known.compare
        found = [_follow(each, bar, examples, printing) for each in steps]
    finally:
        bar.clear()
    if known.json:
        _print_json(found, about, examples)
    else:
        compared = table.comparison_lines(found, examples) if known.compare else ()
        print(*compared, table.LEGEND, sep="\n", flush=True)
    good = any if known.compare else all
    return 0 if good(answer.fits for answer in found) else errors.EXIT_FAILURE


def _show_cached(kinds: Sequence[Tpu], known: argparse.Namespace) -> int:
    """Print what is known of the job; a user's model is read, but not run."""
    model, given = sessions.described(known.model, known.config, known.rest)
    given |= {"task": known.task} if known.task else {}
    manifest = _described_data(known)
    examples = known.examples or manifest.split("train").examples or None
    answers = (sessions.cached(tpu.name, model, given, manifest) for tpu in kinds)
    found = [answer for answer in answers if answer]
    if known.json:
        _print_json(found, {"model": model, "params": given, "examples": examples}, examples)
    elif not found:
        raise errors.TrainingError(
            "no answer is stored for this training; omit --cached to compile it"
        )
    else:
        lines = [line for one in found for line in table.answer_lines(one, examples)]
        print(*lines, table.LEGEND, sep="\n", flush=True)
    return 0 if all(answer.fits for answer in found) else errors.EXIT_FAILURE


def _print_json(found: Sequence[Answer], about: dict[str, Any], examples: int | None) -> None:
    """Print all that was found; docs/sizing.md names each field, and a test compares them."""
    content = {
        "format": _FORMAT,
        "versions": compiler.versions(),
        "job": about,
        "legend": table.LEGEND,
        "answers": [{**one.as_json(examples), "misfit": table.misfit(one)} for one in found],
    }
    print(json.dumps(content, indent=2), flush=True)


def _follow(
    steps: Iterable[Answer], bar: terminal.ProgressBar, examples: int | None, printing: bool
) -> Answer:
    """Return the last of `steps`; print what each of them adds.

    A later answer repeats the lines of the one before, so only new ones are printed.
    """
    printed: set[str] = set()
    last = None
    for last in steps:
        new = [line for line in table.answer_lines(last, examples) if line not in printed]
        if printing and new:
            bar.clear()
            print(*new, sep="\n", flush=True)
        printed |= set(new)
    assert last
    return last
