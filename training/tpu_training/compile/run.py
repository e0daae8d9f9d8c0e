"""Compile a job's step for a TPU type: a first answer at once, then what takes longer."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tpu_training.compile import cache
from tpu_training.compile.answer import Answer
from tpu_training.compile.request import Request
from tpu_training.compile.result import Compiled, Program, Progress, Topology, Watch
from tpu_training.compile.search import search
from tpu_training.compile.tpus import Tpu
from tpu_training.errors import LoweringError

Show = Callable[[float, str], None]
"""Shows how far the work is, 0 to 1, and what is being done."""

# The parts of the work that each stage begins with; code generation takes longest.
_TRACED, _EVALUATED, _SEARCHED = 0.05, 0.15, 0.5
# Code generation for a ResNet-50 takes so long on two cores.
_USUAL_SECONDS = 90.0


# Kept for what code generation adds ("scoped" and "global"): 4.7 MiB for ResNet-50. One that needed
# 0.4 MiB more than there is was optimized all the same, and refused minutes later.
_GENERATED = 8 << 20


class Programs(Protocol):
    """Makes programs of a job."""

    def train(self, replicas: int, part: int) -> Program:
        """Return the step in which a replica processes `part` examples at a time."""

    def evaluation(self, replicas: int) -> Program:
        """Return the step of the evaluation."""


class CompileProgram(Protocol):
    """Compiles a program; `full` generates code, too."""

    def __call__(
        self, program: Program, topology: Topology, *, full: bool, progress: Watch
    ) -> Compiled:
        """Return what the compiler says."""


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

    def train(self, tpu: Tpu, programs: Programs, part: int, *, full: bool = False) -> Compiled:
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
        known = cache.load(key, Compiled)
        if known is not None and not full:
            # The same answer, and so the same text, whether code was generated before or not.
            return dataclasses.replace(known, estimate=None)
        if known is not None and (known.estimate is not None or not known.fits):
            return known
        compiled = self.compile_program(make(), topology_of(tpu), full=full, progress=self._watch)
        compiled = _judged(compiled)
        cache.save(key, compiled)
        return compiled

    def _watch(self, progress: Progress) -> None:
        if progress.known is not None:
            part = _SEARCHED + (1 - _SEARCHED) * min(progress.seconds / _USUAL_SECONDS, 0.99)
            self.show(part, f"generating code, {progress.seconds:.0f} s")


def answers(
    session: Session, tpu: Tpu, programs: Programs, part: int, accumulation: int, *, quick: bool
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


def _with_evaluation(error: LoweringError, programs: Programs, tpu: Tpu) -> LoweringError:
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
    known = cache.load(key, Answer)
    if known is None or _fullness(known) < _fullness(answer):
        cache.save(key, answer)
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
    error = f"code generation needs {_GENERATED} bytes beside the program, {room} are left"
    return dataclasses.replace(compiled, costs=None, error=error)
