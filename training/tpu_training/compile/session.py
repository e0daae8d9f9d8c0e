"""What is to be compiled: its data, and the key under which the cache keeps the answer.

Loads TensorFlow only to read a manifest from gs://.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import os
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tpu_training import __version__
from tpu_training.compile.answer import (
    Answer,
    Compiled,
    Largest,
    Program,
    Progress,
    Topology,
    Tpu,
    bound,
    tpus,
)
from tpu_training.compile.table import milliseconds, size
from tpu_training.data.manifest import (
    FILE_NAME,
    RAW,
    TOKENS,
    Manifest,
    Split,
    parse_manifest,
    stored_spec,
)
from tpu_training.errors import DataError, InputError, LoweringError, ParamsError
from tpu_training.models.params import Params, build_params, read_config, split_overrides
from tpu_training.models.registry import BUILT_IN, DEFAULT_MODEL, load_model
from tpu_training.models.spec import DataSpec

if TYPE_CHECKING:
    from tpu_training.compile.programs import JobPrograms


# Parameters that no compiled step depends on, but for numbers in it.
_WITHOUT_EFFECT = {
    "cache",
    "checkpoint_interval",
    "connect_interval",
    "connect_tries",
    "data_service",
    "epochs",
    "evaluation_interval",
    "hang_timeout",
    "keep_checkpoints",
    "learning_rate",
    "local_devices",
    "order",
    "patience",
    "profile_steps",
    "seed",
    "skip_corrupt_records",
    "snapshot_interval",
    "steps_per_loop",
    "validation_fraction",
    "warmup_fraction",
}


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

    def changed(self, given: Mapping[str, Any]) -> Request:
        """Return the request with other values of some parameters."""
        return dataclasses.replace(self, given={**self.given, **given})

    def without(self, *names: str) -> Request:
        """Return the request without some of the given parameters."""
        left = {name: value for name, value in self.given.items() if name not in names}
        return dataclasses.replace(self, given=left)

    def key(self, tpu: str, **more: object) -> str:
        """Return a name for what `tpu` and `more` make of it, the same in every process."""
        given = {name: _plain(value) for name, value in self.given.items()}
        content = {
            "model": hashlib.sha256(self.source).hexdigest() if self.source else self.model,
            "given": {name: given[name] for name in given if name not in _WITHOUT_EFFECT},
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


def read_manifest(directory: str) -> Manifest:
    """Return the manifest of the data set in `directory`; its files need not be there.

    Loads TensorFlow for a gs:// URL only.

    Raises:
        DataError: It is missing or damaged.
    """
    path = f"{directory.rstrip('/')}/{FILE_NAME}"
    if directory.startswith("gs://"):
        from tpu_training.data import files

        text = files.read_text(path)
    else:
        local = Path(path)
        text = local.read_text(encoding="utf-8") if local.is_file() else None
    if text is None:
        raise DataError(
            f"--data={directory}: contains no {FILE_NAME}; write the data set with `tpu-training "
            "data convert`, or describe the data with --shape and --classes"
        )
    return parse_manifest(text, path)


_IMAGE = re.compile(r"[1-9]\d*x[1-9]\d*x[1-9]\d*")
_TEXT = re.compile(r"[1-9]\d*")


def described_data(shape: str, classes: int, vocabulary: int = 0) -> Manifest:
    """Return the manifest of a data set without files, which `--shape` and its kin describe.

    Args:
        shape: HEIGHTxWIDTHxCHANNELS of an image, or the number of a text's tokens.
        classes: The number of classes.
        vocabulary: The number of tokens in the vocabulary of a text; 0 for images.

    Raises:
        InputError: With every problem at once.
    """
    text, image = bool(_TEXT.fullmatch(shape)), bool(_IMAGE.fullmatch(shape))
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
            f"--vocabulary={vocabulary}: a text of --shape={shape} tokens needs the size of its "
            "vocabulary, such as --vocabulary=30522"
        )
    if image and vocabulary:
        problems.append(f"--vocabulary={vocabulary}: images of --shape={shape} have none; omit it")
    if problems:
        raise InputError("; ".join(problems))
    sizes = tuple(int(size) for size in shape.split("x"))
    spec = stored_spec(TOKENS if text else RAW, sizes, classes, vocabulary)
    splits = {name: Split(0, ()) for name in ("train", "test")}
    return Manifest(f"--shape={shape}", spec, TOKENS if text else RAW, splits)


_TENSORFLOW = ("tensorflow-cpu", "tensorflow-tpu", "tensorflow", "tf-nightly")
_LIBTPU = ("libtpu", "libtpu-nightly")
_PACKAGE = Path(__file__).parents[1]
# The parts of this package that a compiled program depends on.
_SOURCES = ("models", "tasks", "loop", "compile")


def versions() -> dict[str, str | None]:
    """Return the versions of this package, TensorFlow and libtpu; None for what is missing."""
    return {
        "tpu-stack-training": __version__,
        "tensorflow": _first(_TENSORFLOW),
        "libtpu": _first(_LIBTPU),
    }


@cache
def sources_digest() -> str:
    """Return a digest of this package's sources: a working copy changes without a new version."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _first(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


# --- Searches by compiling: the largest batch that fits, and parameters that suit a TPU type.

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

    guess = _foretold(at(start), start)
    if guess > start * _DISTANT:
        guess = _foretold(at(guess), guess)
    most_plain = _edge(plain, *_bracket(plain, guess, _NEAR))
    fitting = [size for size, compiled in tried.items() if compiled.fits]
    if not fitting:
        return Largest(0, 0)

    def fits(examples: int) -> bool:
        return at(examples).fits

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
        middle = _middle(low, high)
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _above(size: int, step: float) -> int:
    return max(size + 1, _whole_tiles(int(size * (1 + step))))


def _below(size: int, step: float) -> int:
    return min(size - 1, _whole_tiles(int(size * (1 - step))))


def _middle(low: int, high: int) -> int:
    """Return a number between, one that fills whole tiles of memory where there is one."""
    middle = (low + high) // 2
    tile = _whole_tiles(middle)
    return tile if tile > low else middle


def _whole_tiles(size: int) -> int:
    """Return the largest number up to `size` that fills whole tiles of memory; else `size`."""
    return size // _TILE * _TILE or size


# The parameters of a recipe that a TPU type asks for, with the compiled facts behind them.
#
# Only what compiled facts decide is proposed. They say nothing about what a model learns.

# A gain by which a proposal is worth another batch size, and with it another learning rate.
_WORTH = 0.05
_FAST, _EXACT = "bfloat16", "float32"

CompileAs = Callable[[int, int, str], Compiled]
"""Compiles the step: examples of a replica at a time, accumulation, precision."""


@dataclass(frozen=True)
class Advice:
    """A parameter's value and why; `given` is the recipe's."""

    name: str
    value: str
    given: str
    reason: str

    @property
    def changes(self) -> bool:
        """Whether it differs from the recipe."""
        return self.value != self.given


def advise(params: Params, tpu: Tpu, compile_as: CompileAs) -> Iterator[Advice]:
    """Yield advice on precision, accumulation and batch size."""
    share = params.replica_batch_size(tpu.replicas)
    given = params.gradient_accumulation
    precision = _precision(params, share // given, given, tpu, compile_as)
    yield precision

    def at(part: int, accumulation: int) -> Compiled:
        return compile_as(part, accumulation, precision.value)

    accumulation = _accumulation(share, given, at)
    yield accumulation
    parts = int(accumulation.value)
    found = search(lambda part: at(part, parts), max(share // parts, 1))
    yield _batch(params, tpu, parts, found, at)


def _precision(
    params: Params, part: int, accumulation: int, tpu: Tpu, compile_as: CompileAs
) -> Advice:
    given = params.precision
    if given != _EXACT:
        reason = "the matrix units take bfloat16; auto is bfloat16 on TPUs"
        return Advice("precision", given, given, reason)
    exact, fast = (compile_as(part, accumulation, kind) for kind in (_EXACT, _FAST))
    if not exact.costs or not fast.costs:
        reason = f"float32 needs {size(exact.needed_bytes)}, bfloat16 {size(fast.needed_bytes)}"
        return Advice("precision", _FAST, given, reason)
    slow, quick = (bound(found, tpu).seconds for found in (exact.costs, fast.costs))
    value = _FAST if quick < slow * (1 - _WORTH) else given
    reason = (
        f"a step takes at least {milliseconds(quick)} in bfloat16, {milliseconds(slow)} in float32"
    )
    return Advice("precision", value, given, reason)


def _accumulation(share: int, given: int, at: Callable[[int, int], Compiled]) -> Advice:
    """Return the fewest parts that need no recomputation; failing that, that fit."""
    fallback: tuple[int, Compiled] | None = None
    for parts in (count for count in range(1, share + 1) if share % count == 0):
        found = at(share // parts, parts)
        if found.costs and found.costs.remat_instructions == 0:
            needs = f"{size(found.needed_bytes)} of {size(found.limit_bytes)}"
            reason = f"{_parts(parts)} of {share // parts} examples needs {needs}"
            reason += " and computes nothing twice"
            return Advice("gradient_accumulation", str(parts), str(given), reason)
        if found.fits and fallback is None:
            fallback = parts, found
    if fallback is None:
        reason = "not even one example a replica at a time fits; choose a larger TPU type"
        return Advice("gradient_accumulation", str(given), str(given), reason)
    parts, found = fallback
    reason = f"{_parts(parts)} of {share // parts} examples fits, with results computed twice"
    return Advice("gradient_accumulation", str(parts), str(given), reason)


def _batch(
    params: Params,
    tpu: Tpu,
    parts: int,
    largest: Largest,
    at: Callable[[int, int], Compiled],
) -> Advice:
    given = params.global_batch_size
    now = given // tpu.replicas // parts
    most = largest.plain or largest.fits
    limit = f"up to {most * parts * tpu.replicas:,} fits without computing anything twice"
    keep = Advice("global_batch_size", str(given), str(given), limit)
    given_costs, most_costs = at(now, parts).costs, at(most, parts).costs if most else None
    if given_costs is None or most_costs is None or most <= now:
        return keep
    before, after = bound(given_costs, tpu).seconds / now, bound(most_costs, tpu).seconds / most
    gain = 1 - after / before
    if gain < _WORTH:
        reason = f"{limit}; that would save {max(gain, 0):.0%} of the least time of an example"
        return Advice("global_batch_size", str(given), str(given), reason)
    value = most * parts * tpu.replicas
    reason = (
        f"the least time of an example falls by {gain:.0%}; a larger batch wants another learning "
        "rate (arXiv:1706.02677 scales it with the batch): see lr-range-test"
    )
    return Advice("global_batch_size", str(value), str(given), reason)


def _parts(parts: int) -> str:
    return "one part" if parts == 1 else f"each of {parts} parts"


# --- The answers for a job or a file on a TPU type: compiled as far as the cache lacks them.
#
# A first answer comes at once, then what takes longer. `cached` reads the cache alone. Nothing here
# loads TensorFlow.

Show = Callable[[float, str], None]
"""Shows how far the work is, 0 to 1, and what is being done."""

# How much of the work is done when each stage begins; code generation takes longest.
_TRACED, _EVALUATED, _SEARCHED = 0.05, 0.15, 0.5
# Code generation for a ResNet-50 on two cores.
_USUAL_SECONDS = 90.0
# Reserved for what code generation adds ("scoped" and "global"): 4.7 MiB for ResNet-50. A program
# that needed 0.4 MiB too much was optimized all the same, and refused minutes later.
_GENERATED = 8 << 20


CompileProgram = Callable[..., Compiled]
"""Compiles a program for a topology, as `compiler.compile_program`."""


@dataclass(frozen=True)
class Session:
    """What a request is answered with.

    Attributes:
        compile_program: Compiles what the cache lacks.
        show: Shows the progress.
    """

    request: Request
    compile_program: CompileProgram
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
        """Return a compiled program, from the cache if it is there under `key`."""
        known = load_entry(key, Compiled)
        if known is not None and not full:
            # The same answer, and so the same text, whether or not code was generated before.
            return dataclasses.replace(known, estimate=None)
        if known is not None and (known.estimate is not None or not known.fits):
            return known
        compiled = self.compile_program(make(), topology_of(tpu), full=full, progress=self._watch)
        compiled = _judged(compiled)
        save_entry(key, compiled)
        return compiled

    def _watch(self, progress: Progress) -> None:
        if progress.known is not None:
            part = _SEARCHED + (1 - _SEARCHED) * min(progress.seconds / _USUAL_SECONDS, 0.99)
            self.show(part, f"generating code, {progress.seconds:.0f} s")


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
        show(_EVALUATED, f"searching the largest batch: {examples} examples a replica")
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
    """Keep an answer, unless a fuller one is there already; return the fuller one."""
    key = answer_key(request, answer.tpu)
    known = load_entry(key, Answer)
    if known is None or _fullness(known) < _fullness(answer):
        save_entry(key, answer)
    return answer


def _fullness(answer: Answer) -> int:
    return sum(
        part is not None for part in (answer.evaluation, answer.largest, answer.train.estimate)
    )


def topology_of(tpu: Tpu) -> Topology:
    """Return what libtpu compiles for; on v4 it would take each of a chip's cores as a device."""
    options = {"chip_config_name": "megacore"} if tpu.family == "v4" else {}
    return Topology(tpu.name, tpu.topology, options)


def _judged(compiled: Compiled) -> Compiled:
    """Return the answer without code generation as refused if that would not find room."""
    room = compiled.limit_bytes - compiled.needed_bytes
    if not compiled.fits or compiled.estimate is not None or room >= _GENERATED:
        return compiled
    error = f"code generation needs {_GENERATED} bytes next to the program, {room} are left"
    return dataclasses.replace(compiled, costs=None, error=error)


def cached(tpu: str, model: str, given: Mapping[str, Any], manifest: Manifest) -> Answer | None:
    """Return what `tpu-training compile` found for a job; None if it has not compiled it.

    Args:
        tpu: The TPU type.
        model: The model's name, or the path of a user's file, which is read but not run.
        given: The parameters that the job gives, of its command line and its --config.
        manifest: The job's data set; see `read_manifest`.
    """
    if tpu not in tpus() or (model.endswith(".py") and not Path(model).is_file()):
        return None
    try:
        spec = manifest.input_spec(_params(model, given).image_size)
    except InputError:
        return None
    return load_entry(answer_key(request(model, given, spec), tpu), Answer)


def cached_job(tpu: str, arguments: Sequence[str], manifest: Manifest) -> Answer | None:
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
    parameters = read_config(config)
    overrides, problems = split_overrides(rest)
    if problems:
        raise ParamsError(problems)
    named = parameters.pop("model", DEFAULT_MODEL)
    return model or str(named), {**parameters, **dict(overrides)}


def _params(model: str, given: Mapping[str, Any]) -> Params:
    """Return the parameters; of a user's model only those that every model has."""
    given = {name: value for name, value in given.items() if name != "task"}
    if model in BUILT_IN:
        return build_params(given, (), (), load_model(model).params)
    common = Params.__dataclass_fields__.keys()
    names = {str(name).replace("-", "_"): value for name, value in given.items()}
    return build_params({name: names[name] for name in names if name in common}, ())


# The cache. An entry is a file named after everything that decides its content, so it is never out
# of date, and it is replaced atomically. Entries in another format get another number:
_FORMAT = 1

T = TypeVar("T")

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder of the entries."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tpu-stack" / "compile"


def load_entry(key: str, kind: type[T]) -> T | None:
    """Return the entry `key`; None if there is none that can be used.

    An entry that is damaged, or that another version wrote, is set aside with a line in the log.
    """
    path = cache_folder() / f"{key}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}, expected {_FORMAT}")
        return decode(kind, content["entry"])
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _set_aside(path, error)
        return None


def save_entry(key: str, entry: Any) -> None:
    """Keep the dataclass `entry`. A folder that can't be written only costs the time next time."""
    content = {"format": _FORMAT, "entry": dataclasses.asdict(entry)}
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        _replace(cache_folder() / f"{key}.json", json.dumps(content, indent=1))
    except OSError as error:
        logger.warning("compile: the answer is not kept in %s (%s)", cache_folder(), error.strerror)


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _set_aside(path: Path, error: Exception) -> None:
    aside = path.with_suffix(".damaged")
    try:
        os.replace(path, aside)
    except OSError:
        return  # Another process was faster.
    logger.warning("compile: set %s aside and compile again: it can't be read (%s)", aside, error)


def decode(kind: type[T], content: Mapping[str, Any]) -> T:
    """Return the dataclass that `dataclasses.asdict` turned into `content`.

    Raises:
        KeyError: A field is missing.
        TypeError: A field has another type.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: _decoded(hints[name], content[name]) for name in names})


def _decoded(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(one for one in get_args(hint) if one is not type(None))
        origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return decode(hint, value)  # type: ignore[arg-type]
    if origin is tuple:
        return tuple(_decoded(get_args(hint)[0], one) for one in value)
    if hint in (int, float, str, bool) and not isinstance(value, (hint, int)):
        raise TypeError(f"expected {hint.__name__}, found {value!r}")
    return value
