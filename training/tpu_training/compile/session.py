"""The answers for a job or a file on a TPU type: compiled as far as the cache lacks them.

A first answer comes at once, then what takes longer. `cached` reads the cache alone. Nothing here
loads TensorFlow, except to read a manifest from gs://.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tpu_core import records
from tpu_training.cluster.machine import cache_folder
from tpu_training.compile.answer import Answer, Compiled, Largest, Program, Topology, Tpu, tpus
from tpu_training.compile.compiler import compile_program, versions
from tpu_training.data import manifest as manifests
from tpu_training.errors import DataError, InputError, LoweringError, ParamsError
from tpu_training.models import params, registry
from tpu_training.models.spec import DataSpec

if TYPE_CHECKING:
    from tpu_training.compile.programs import JobPrograms

T = TypeVar("T")

logger = logging.getLogger(__name__)

# --- What is to be compiled, and the key under which the cache keeps the answer.

# Parameters that no compiled step depends on, but for numbers in it.
_WITHOUT_EFFECT = {
    *("cache", "checkpoint_interval", "connect_interval", "connect_tries"),
    *("epochs", "evaluation_interval", "hang_timeout", "keep_checkpoints", "learning_rate"),
    *("backend", "eager", "limit_batches", "local_devices", "order", "overfit_batches"),
    *("patience", "profile_steps", "seed", "steps", "tokens"),
    *("snapshot_interval", "steps_per_loop", "validation_fraction", "warmup_fraction"),
}
_PACKAGE = Path(__file__).parents[1]
# The parts of this package that a compiled program depends on.
_SOURCES = ("models", "tasks", "loop", "compile")


@dataclass(frozen=True)
class Request:
    """A job's step, or a program in a file, as far as it decides what is compiled.

    Attributes:
        model: The model's name, or the path of a user's file, or of a program.
        source: The content of that file; empty for a built-in model.
        given: The parameters that the user gave; the others are the model's defaults.
        spec: The data; None for a program in a file.
    """

    model: str
    source: bytes
    given: Mapping[str, Any]
    spec: DataSpec | None

    def without(self, *names: str) -> Request:
        """Return the request without some of the given parameters."""
        left = {name: value for name, value in self.given.items() if name not in names}
        return dataclasses.replace(self, given=left)

    def key(self, tpu: str, **more: object) -> str:
        """Return a name for what `tpu` and `more` make of it, the same in every process.

        A file of the user's counts by its content: moving it changes nothing.
        """
        given = {n: _plain(value) for n, value in self.given.items() if n not in _WITHOUT_EFFECT}
        content = {
            "model": hashlib.sha256(self.source).hexdigest() if self.source else self.model,
            "given": given,
            "spec": self.spec and dataclasses.asdict(self.spec),
            "versions": versions(),
            "sources": sources_digest(),
            "tpu": tpu,
            "more": more,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def request(model: str, given: Mapping[str, Any], spec: DataSpec) -> Request:
    """Return the request for a model's step; reads a user's file, but doesn't run it."""
    source = Path(model).read_bytes() if model.endswith(".py") else b""
    names = {str(name).replace("-", "_"): value for name, value in given.items()}
    return Request(model, source, names, spec)


def _plain(value: object) -> str:
    """Return one text for a value that stands as text or number: 64, 64.0, "64"."""
    try:
        return repr(float(str(value)))
    except ValueError:
        return str(value)


@cache
def sources_digest() -> str:
    """Return a digest of this package's sources: a working copy changes without a new version."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def read_manifest(directory: str) -> manifests.Manifest:
    """Return the manifest of the dataset in `directory`; its files need not be there.

    Loads TensorFlow for a gs:// URL only.

    Raises:
        DataError: It is missing or damaged.
    """
    path = f"{directory.rstrip('/')}/{manifests.FILE_NAME}"
    if directory.startswith("gs://"):
        from tpu_training.data import files

        text = files.read_text(path)
    else:
        local = Path(path)
        text = local.read_text(encoding="utf-8") if local.is_file() else None
    if text is None:
        raise DataError(
            f"--data={directory}: contains no {manifests.FILE_NAME}; convert the data with "
            "`tpu-training data convert`, or describe the data with --shape and --classes"
        )
    return manifests.parse_manifest(text, path)


def described_data(shape: str, classes: int, vocabulary: int = 0) -> manifests.Manifest:
    """Return the manifest of a dataset without files, which `--shape` and its kin describe.

    Args:
        shape: HEIGHTxWIDTHxCHANNELS of an image, or the number of a text's tokens.
        classes: The number of classes.
        vocabulary: The number of tokens in the vocabulary of a text; 0 for images.

    Raises:
        InputError: With every problem at once.
    """
    image = re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", shape)
    text = re.fullmatch(r"[1-9]\d*", shape)
    problems = []
    if not text and not image:
        problems.append(
            f"--shape={shape}: expected HEIGHTxWIDTHxCHANNELS of an image, such as 224x224x3, or "
            "the number of a text's tokens, such as 512"
        )
    if classes < 1:
        problems.append(f"--classes={classes}: must be at least 1")
    if text and vocabulary < 1:
        problems.append(
            f"--vocabulary={vocabulary}: a text of --shape={shape} tokens needs the size of the "
            "vocabulary, such as --vocabulary=30522"
        )
    if image and vocabulary:
        problems.append(
            f"--vocabulary={vocabulary}: images of --shape={shape} have no vocabulary; omit it"
        )
    if problems:
        raise InputError("; ".join(problems))
    sizes = tuple(int(size) for size in shape.split("x"))
    form = manifests.TOKENS if text else manifests.RAW
    spec = manifests.stored_spec(form, sizes, classes, vocabulary)
    splits = {name: manifests.Split(0, ()) for name in ("train", "test")}
    return manifests.Manifest(f"--shape={shape}", spec, form, splits)


# --- Compile what the cache lacks.

# How much of the work is done when each stage begins; code generation takes longest.
_TRACED, _EVALUATED, _SEARCHED = 0.05, 0.15, 0.5
# Code generation for a ResNet-50 on two cores.
_USUAL_SECONDS = 90.0
# Reserved for what code generation adds ("scoped" and "global"): 4.7 MiB for ResNet-50. A program
# that needed 0.4 MiB too much was optimized all the same, and refused minutes later.
_GENERATED = 8 << 20

Show = Callable[[float, str], None]
"""Shows how far the work is, 0 to 1, and what is being done."""


@dataclass(frozen=True)
class Session:
    """A request that is answered, and a place to show the progress."""

    request: Request
    show: Show

    def train(self, tpu: Tpu, programs: JobPrograms, part: int, *, full: bool = False) -> Compiled:
        """Return the step in which a replica processes `part` examples at a time."""
        # The recipe's own batch sizes change nothing here.
        key = self.request.without("global_batch_size", "evaluation_batch_size").key(
            tpu.name, program="train", part=part, replicas=tpu.replicas
        )
        return self.compile(key, tpu, partial(programs.train, tpu.replicas, part), full=full)

    def compile(
        self, key: str, tpu: Tpu, make: Callable[[], Program], *, full: bool = False
    ) -> Compiled:
        """Return a compiled program, from the cache if it is there under `key`.

        Without `full` the answer is the same, and so its text, whether or not code was generated
        before.
        """
        known = load_entry(key, Compiled)
        if known is not None and not full:
            return dataclasses.replace(known, estimate=None)
        if known is not None and (known.estimate is not None or not known.fits):
            return known
        compiled = compile_program(make(), topology_of(tpu), full=full, progress=self._watch)
        room = compiled.limit_bytes - compiled.needed_bytes
        if compiled.fits and compiled.estimate is None and room < _GENERATED:
            error = f"code generation needs {_GENERATED} bytes next to the program, {room} are left"
            compiled = dataclasses.replace(compiled, costs=None, error=error)
        save_entry(key, compiled)
        return compiled

    def _watch(self, seconds: float) -> None:
        part = _SEARCHED + (1 - _SEARCHED) * min(seconds / _USUAL_SECONDS, 0.99)
        self.show(part, f"generating code, {seconds:.0f} s")


def topology_of(tpu: Tpu) -> Topology:
    """Return what libtpu compiles for; on v4 it would take each of a chip's cores as a device."""
    options = {"chip_config_name": "megacore"} if tpu.family == "v4" else {}
    return Topology(tpu.name, tpu.topology, options)


def answers(
    session: Session, tpu: Tpu, programs: JobPrograms, part: int, accumulation: int, *, quick: bool
) -> Iterator[Answer]:
    """Yield what is known, ever more of it: memory and bounds, evaluation, search, estimate.

    With `quick` only the first. The last is kept for `cached`.

    Raises:
        LoweringError: With everything in step and evaluation that a TPU does not take.
    """
    show, request = session.show, session.request

    def probe(examples: int) -> Compiled:
        show(_EVALUATED, f"searching for the largest batch: {examples} examples a replica")
        return session.train(tpu, programs, examples)

    show(_TRACED, "compiling the step")
    try:
        train = session.train(tpu, programs, part)
    except LoweringError as error:
        raise _with_evaluation(error, programs, tpu) from error
    answer = Answer(tpu.name, tpu.replicas, part, accumulation, train)
    yield _keep(request, answer)
    if quick:
        return
    show(_EVALUATED, "compiling the evaluation")
    key = request.key(tpu.name, program="evaluate", replicas=tpu.replicas)
    evaluation = session.compile(key, tpu, partial(programs.evaluation, tpu.replicas))
    answer = dataclasses.replace(answer, evaluation=evaluation)
    yield answer
    answer = dataclasses.replace(answer, largest=search(probe, part))
    yield _keep(request, answer)
    if train.fits:
        show(_SEARCHED, "generating code")
        answer = dataclasses.replace(answer, train=session.train(tpu, programs, part, full=True))
        yield _keep(request, answer)


def _with_evaluation(error: LoweringError, programs: JobPrograms, tpu: Tpu) -> LoweringError:
    """Return the error with what a TPU does not take of the evaluation, too."""
    try:
        programs.evaluation(tpu.replicas)
    except LoweringError as other:
        return LoweringError(f"{error}; {other}")
    return error


def compile_file(session: Session, tpu: Tpu, program: Program, *, quick: bool) -> Iterator[Answer]:
    """Yield what is known of a program in a file: memory and bounds, then the estimate."""
    key = session.request.key(tpu.name, program="file")
    for full in (False,) if quick else (False, True):
        compiled = session.compile(key, tpu, lambda: program, full=full)
        yield Answer(tpu.name, program.replicas * program.partitions, 0, 1, compiled)
        if not compiled.fits:
            return


def answer_key(request: Request, tpu: str) -> str:
    """Return the name under which the whole answer is kept."""
    return request.key(tpu, program="answer")


def _keep(request: Request, answer: Answer) -> Answer:
    """Keep an answer, unless a fuller one is there already; return it."""
    key = answer_key(request, answer.tpu)
    known = load_entry(key, Answer)
    if known is None or _fullness(known) < _fullness(answer):
        save_entry(key, answer)
    return answer


def _fullness(answer: Answer) -> int:
    parts = (answer.evaluation, answer.largest, answer.train.estimate)
    return sum(part is not None for part in parts)


# --- Search the largest batch that fits, by compiling.

# How far the largest batch found may be below the true edge.
_TOLERANCE = 0.01
# Examples of one replica at a time: more than any model takes.
_MOST = 1 << 20
# Tiles of memory hold as many rows.
_TILE = 8
# Steps away from a guess, as parts of it: the first one from a size that memory foretells, the
# first one beyond the sizes that need no recomputation, and how much longer each next one is.
_NEAR, _FAR, _LONGER = 0.02, 0.25, 4
# How many sizes above the edge are tried.
_AHEAD = 3
# A guess from a size this many times smaller is made once more from the size that was guessed.
_DISTANT = 4
# What needs as much memory for a batch of any size.
_FIXED = ("weights", "optimizer", "statistics")

Compile = Callable[[int], Compiled]
"""Compiles the step for a number of examples that a replica processes at a time."""


def search(compile_at: Compile, start: int) -> Largest:
    """Search the sizes, beginning with what the memory for `start` examples foretells.

    Without recomputation the need of memory grows with the batch, so that few sizes must be tried.
    Beyond, the compiler computes results again rather than keep them: there the steps are long, and
    the last gap is halved. A larger batch may even need less there, ResNet-50's 1,080 on v3 less
    than 1,064, which is refused: so a few sizes above the edge are tried, too.
    """
    tried: dict[int, Compiled] = {}

    def at(examples: int) -> Compiled:
        if examples not in tried:
            tried[examples] = compile_at(examples)
        return tried[examples]

    def plain(examples: int) -> bool:
        costs = at(examples).costs
        return costs is not None and costs.remat_instructions == 0

    def fits(examples: int) -> bool:
        return at(examples).fits

    guess = _foretold(at(start), start)
    if guess > start * _DISTANT:
        guess = _foretold(at(guess), guess)
    most_plain = _edge(plain, *_bracket(plain, guess, _NEAR))
    fitting = [size for size, compiled in tried.items() if compiled.fits]
    if not fitting:
        return Largest(0, 0)
    low = max(fitting)
    refused = [size for size in tried if size > low]
    bracket = (low, min(refused)) if refused else _bracket(fits, low, _FAR)
    return Largest(_beyond(fits, _edge(fits, *bracket)), most_plain)


def _beyond(accepts: Callable[[int], bool], size: int) -> int:
    """Return a size of which a few larger ones, each by the tolerance, are all refused."""
    ahead = 1
    while ahead <= _AHEAD:
        larger = _above(size, _TOLERANCE * ahead)
        size, ahead = (larger, 1) if larger <= _MOST and accepts(larger) else (size, ahead + 1)
    return size


def _foretold(compiled: Compiled, size: int) -> int:
    """Return the size that would fill memory if each example needed as much as with `size`."""
    fixed = sum(usage.bytes for usage in compiled.usage if usage.kind in _FIXED)
    room, needed = compiled.limit_bytes - fixed, compiled.needed_bytes - fixed
    if room <= 0 or needed <= 0:
        return size
    return max(1, min(_whole_tiles(int(room / needed * size)), _MOST))


def _bracket(accepts: Callable[[int], bool], guess: int, step: float) -> tuple[int, int]:
    """Return a number that is accepted, or 0, and a larger one that is not; both near `guess`."""
    if accepts(guess):
        low, high = guess, _above(guess, step)
        while high <= _MOST and accepts(high):
            step = min(step * _LONGER, 1.0)
            low, high = high, _above(high, step)
        return low, min(high, _MOST + 1)
    low, high = _below(guess, step), guess
    while low and not accepts(low):
        step = min(step * _LONGER, 0.5)
        low, high = _below(low, step), low
    return low, high


def _edge(accepts: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number from `low` to below `high` that is accepted, to the tolerance."""
    while high - low > max(1, int(low * _TOLERANCE)):
        middle = (low + high) // 2
        tile = _whole_tiles(middle)
        middle = tile if tile > low else middle
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _above(size: int, step: float) -> int:
    return max(size + 1, _whole_tiles(int(size * (1 + step))))


def _below(size: int, step: float) -> int:
    return min(size - 1, _whole_tiles(int(size * (1 - step))))


def _whole_tiles(size: int) -> int:
    """Return the largest number up to `size` that fills whole tiles of memory; else `size`."""
    return size // _TILE * _TILE or size


# --- Read what is known, without compiling.


def cached(
    tpu: str, model: str, given: Mapping[str, Any], manifest: manifests.Manifest
) -> Answer | None:
    """Return what `tpu-training compile` found for a job; None if it has not compiled it.

    Args:
        tpu: The TPU type.
        model: The model's name, or the path of a user's file, which is read but not run.
        given: The parameters that the job gives, of its command line and its --config.
        manifest: The job's dataset; see `read_manifest`.
    """
    if tpu not in tpus() or (model.endswith(".py") and not Path(model).is_file()):
        return None
    try:
        spec = manifest.input_spec(_params(model, given).image_size)
    except InputError:
        return None
    return load_entry(answer_key(request(model, given, spec), tpu), Answer)


def cached_job(tpu: str, arguments: Sequence[str], manifest: manifests.Manifest) -> Answer | None:
    """Return what is known of the job that `arguments` of `tpu-training train` describe.

    None, too, for arguments that name a TPU or data of their own, or that can't be read.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--model", "--config", "--data"):
        parser.add_argument(flag)
    try:
        known, rest = parser.parse_known_args(arguments)
        model, given = described(known.model, known.config, rest)
    except (argparse.ArgumentError, InputError):
        return None
    return None if known.data else cached(tpu, model, given, manifest)


def described(
    model: str | None, config: str | None, rest: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Return the model's name and the parameters given, of --model, --config and `--NAME=VALUE`.

    A user's model is not loaded, so names of parameters are not checked.

    Raises:
        InputError: The file or an argument can't be read.
    """
    parameters = params.read_config(config)
    overrides, problems = params.split_overrides(rest)
    if problems:
        raise ParamsError(problems)
    named = parameters.pop("model", registry.DEFAULT_MODEL)
    return model or str(named), {**parameters, **dict(overrides)}


def _params(model: str, given: Mapping[str, Any]) -> params.Params:
    """Return the parameters; of a user's model only those that every model has."""
    names = {str(n).replace("-", "_"): value for n, value in given.items() if n != "task"}
    if model in registry.BUILT_IN:
        return params.build_params(names, (), (), registry.load_model(model).params)
    common = params.Params.__dataclass_fields__.keys()
    return params.build_params({name: names[name] for name in names if name in common}, ())


# --- The cache. An entry is a record named after everything that decides its content, so it is
# never out of date, and it is replaced atomically.


def load_entry(key: str, kind: type[T]) -> T | None:
    """Return the entry `key`; None if there is none, or one that is damaged: it is replaced."""
    path = cache_folder("compile") / f"{key}.json"
    try:
        return records.load(kind, path.read_bytes())
    except OSError:
        return None
    except records.Unreadable as error:
        logger.warning("compile: %s can't be read (%s); compiling again", path, error)
        return None


def save_entry(key: str, entry: Any) -> None:
    """Keep the dataclass `entry`. A folder that can't be written only costs the time next time."""
    folder = cache_folder("compile")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Several processes may write the same entry: each has a file of its own until it is whole.
        with tempfile.TemporaryDirectory(dir=folder) as own:
            unfinished = Path(own, key)
            unfinished.write_bytes(records.dump(entry))
            unfinished.replace(folder / f"{key}.json")
    except OSError as error:
        logger.warning("compile: the answer was not stored in %s (%s)", folder, error.strerror)
