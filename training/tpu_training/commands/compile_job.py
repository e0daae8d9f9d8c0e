"""The arguments that describe a job to compile, and the job that they describe."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tpu_training.commands.arguments import Command, add_task, build_model
from tpu_training.compile.manifests import read_manifest
from tpu_training.compile.problems import machine_problems, memory_problems, tensorflow_problems
from tpu_training.compile.program.specs import described_data
from tpu_training.compile.request import Request, request
from tpu_training.compile.tpus import Tpu, tpus, unknown_tpu
from tpu_training.data.manifest import Manifest
from tpu_training.errors import InputError, ParamsError
from tpu_training.models.params import Params
from tpu_training.models.registry import DEFAULT_MODEL, ModelDefinition, built_in_models
from tpu_training.tasks.choose import check_targets, identity

_FLAGS = (
    *("tpu", "compare", "model", "task", "data", "shape", "classes", "vocabulary", "examples"),
    *("config", "hlo", "stablehlo", "quick", "cached", "json", "debug"),
)

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A job to compile.

    Attributes:
        examples: How many an epoch has; None if nobody said.
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
        help=f"{', '.join(built_in_models())}, or a file NAME.py of your own (default: "
        f"{DEFAULT_MODEL})",
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
