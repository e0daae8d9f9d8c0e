"""The answers for a job or a file on a TPU type: compiled as far as the cache lacks them.

A first answer comes at once, then what takes longer. `cached` reads the cache alone. Nothing here
loads TensorFlow.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tpu_training.compile.answer import Answer
from tpu_training.compile.request import Request, request
from tpu_training.compile.result import Compiled, Program, Progress, Topology
from tpu_training.compile.search import search
from tpu_training.compile.tpus import Tpu, tpus
from tpu_training.data.manifest import Manifest
from tpu_training.errors import InputError, LoweringError, ParamsError
from tpu_training.models.params import Params, build_params, read_config, split_overrides
from tpu_training.models.registry import BUILT_IN, DEFAULT_MODEL, load_model

if TYPE_CHECKING:
    from tpu_training.compile.programs import JobPrograms

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
    return kind(**{name: _value(hints[name], content[name]) for name in names})


def _value(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(one for one in get_args(hint) if one is not type(None))
        origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return decode(hint, value)  # type: ignore[arg-type]
    if origin is tuple:
        return tuple(_value(get_args(hint)[0], one) for one in value)
    if hint in (int, float, str, bool) and not isinstance(value, (hint, int)):
        raise TypeError(f"expected {hint.__name__}, found {value!r}")
    return value
