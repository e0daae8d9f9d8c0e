"""The programs to compile: a job's steps, or a file of another framework.

TensorFlow makes a job's steps in a process of its own, which returns its memory when it ends.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import multiprocessing
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tpu_training import errors
from tpu_training.compile.answer import Program
from tpu_training.data.manifest import Manifest
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition
from tpu_training.monitoring.terminal import native_output_hidden


@dataclass(frozen=True)
class JobPrograms:
    """The training step and the evaluation of a job."""

    model: ModelDefinition
    params: Params
    manifest: Manifest
    # The last step, which several TPU types with as many replicas share.
    _made: dict[tuple[int, int], Program] = field(default_factory=dict, repr=False)

    def train(self, replicas: int, part: int) -> Program:
        """Return the step in which a replica processes `part` examples at a time."""
        if (replicas, part) not in self._made:
            self._made.clear()
            batch = part * self.params.gradient_accumulation * replicas
            params = dataclasses.replace(self.params, global_batch_size=batch)
            made = make_in_child(lambda: self._lower("train", params, replicas))
            self._made[replicas, part] = made
        return self._made[replicas, part]

    def evaluation(self, replicas: int) -> Program:
        """Return the step of the evaluation."""
        return make_in_child(lambda: self._lower("evaluate", self.params, replicas))

    def _lower(self, step: str, params: Params, replicas: int) -> Program:
        from tpu_training.compile.lowering import evaluation_program, train_program

        make = train_program if step == "train" else evaluation_program
        return make(self.model, params, self.manifest, replicas)


# Of linux/prctl.h.
_PR_SET_PDEATHSIG = 1
# Counts what this process made.
_made = itertools.count()


def make_in_child(make: Callable[[], Program]) -> Program:
    """Return what `make` returns in a copy of this process.

    Each trace of a model leaves some hundred MB behind, and the compiler needs memory as well. The
    first child imports TensorFlow for itself, and frees it when it ends: often there is no second
    one. Later ones find TensorFlow in this process. Output of TensorFlow or a user's model is
    hidden: standard output may be a JSON document. If TensorFlow runs in this process already (a
    user's model file computed something while it was imported), a copy would lack its threads, so
    `make` runs here.

    Raises:
        TrainingError: What `make` raised, or that it ended the process.
    """
    if _tensorflow_runs():
        with native_output_hidden():
            return make()
    if next(_made):
        import_tensorflow()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(make, sender), daemon=True)
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        raise errors.TrainingError(
            f"TensorFlow ended with exit code {process.exitcode} while it created the program to "
            "compile; --debug shows its last messages"
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(answer, Program):
        return answer
    kind, text = answer
    error: errors.TrainingError = getattr(errors, kind)(text)
    raise error


def _send(make: Callable[[], Program], sender: Connection[object, object]) -> None:
    # The parent alone answers Ctrl-C, and the kernel ends this process with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        with native_output_hidden():
            import_tensorflow()
            sender.send(make())
    except Exception as error:
        if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") < "2":
            traceback.print_exc()  # With --debug.
        if not isinstance(error, errors.TrainingError):
            error = errors.translate(error)
        # Its kind and text: not every exception can be sent.
        kind = errors.InputError if isinstance(error, errors.ParamsError) else type(error)
        sender.send((kind.__name__, str(error)))


def _tensorflow_runs() -> bool:
    eager = sys.modules.get("tensorflow.python.eager.context")
    context = getattr(eager, "_context", None)
    return bool(getattr(context, "_initialized", False))


# TensorFlow and Keras import these where they are installed and do without them elsewhere; no step
# needs them. Without them the import takes 0.4 to 0.5 of the time. Who asks for them: Keras'
# sklearn_wrapper, visualization and data adapters, TensorFlow's gce_cluster_resolver, and TFLite's
# converter of functions of JAX.
_OPTIONAL = ("googleapiclient", "jax", "matplotlib", "pandas", "scipy", "sklearn")


def import_tensorflow() -> None:
    """Import TensorFlow without the libraries that it merely looks for.

    What is loaded already stays as it is: a user's model may need the libraries.
    """
    if "tensorflow" in sys.modules:
        return
    with hidden(_OPTIONAL):
        import tensorflow  # noqa: F401


@contextmanager
def hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Let imports of libraries called `names` fail within the block, as if not installed."""
    absent = [name for name in names if name not in sys.modules]
    # The import system takes None for a module that is known to be missing.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


_MLIR_BYTECODE = b"ML\xefR"
_MLIR_TEXT = re.compile(rb"\s*(//|#|module\b|\"builtin\.module\"|func\.func\b|!)")
_COUNT = re.compile(rb"mhlo\.num_(replicas|partitions) = (\d+)")
# What bytecode has of a program that is divided among cores, of JAX' two partitioners.
_DIVIDED = re.compile(rb"sdy\.sharding|mhlo\.sharding|manual_computation")
_PAGE = "see docs/sizing.md#compile-a-step-of-jax-or-pytorch"


def read_program(file: str) -> Program:
    """Return the program in a file of StableHLO, as MLIR's text or its bytecode.

    It runs on as many cores as the text says, else on one.

    Raises:
        InputError: The file is not readable or something else.
    """
    path = Path(file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise errors.InputError(f"--stablehlo={file}: can't be read ({error.strerror})") from error
    if content.startswith(_MLIR_BYTECODE):
        if _DIVIDED.search(content):
            raise errors.InputError(
                f"--stablehlo={file} is divided among cores, and its bytecode doesn't show how "
                f"many; write it as text, for example with `exported.mlir_module()`; {_PAGE}"
            )
    elif not _MLIR_TEXT.match(content):
        raise errors.InputError(f"--stablehlo={file} is neither MLIR text nor bytecode; {_PAGE}")
    counts = {name: int(count) for name, count in _COUNT.findall(content)}
    replicas, partitions = (counts.get(name, 1) for name in (b"replicas", b"partitions"))
    return Program(path.name, content, "mlir", replicas, partitions=partitions)
