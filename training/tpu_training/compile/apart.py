"""Make programs in a process of their own, which gives TensorFlow's memory back when it ends."""

import ctypes
import itertools
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from tpu_training import errors
from tpu_training.compile.lean import import_tensorflow
from tpu_training.compile.result import Program
from tpu_training.errors import InputError, TrainingError
from tpu_training.monitoring.terminal import native_output_hidden

# Of linux/prctl.h.
_PR_SET_PDEATHSIG = 1
# Counts what this process made.
_made = itertools.count()


def make_apart(make: Callable[[], Program]) -> Program:
    """Return what `make` returns in a copy of this process.

    Each trace of a model leaves some hundred MB behind, and the compiler needs memory as well. The
    first copy imports TensorFlow alone and takes it along when it ends: often it stays the only
    one. Those after it find TensorFlow in this process. What TensorFlow or a user's model
    prints is left out: standard output may be a JSON document. If
    TensorFlow runs in this process already, its threads would be missing in a copy, so `make` runs
    here: when a user's model file computes something while it is imported.

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
        raise TrainingError(
            f"TensorFlow ended with exit code {process.exitcode} while it made the program to "
            "compile; --debug shows its last words"
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(answer, Program):
        return answer
    raise _error(*answer)


def _send(make: Callable[[], Program], sender: "Connection[object, object]") -> None:
    _end_with_parent()
    try:
        with native_output_hidden():
            import_tensorflow()
            sender.send(make())
    except Exception as error:
        if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") < "2":
            traceback.print_exc()  # With --debug.
        sender.send(_described(error))


def _end_with_parent() -> None:
    """Let the parent alone answer Ctrl-C, and the kernel end this process with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _described(error: Exception) -> tuple[str, str]:
    """Return an error's kind and text: not every exception can be sent."""
    if not isinstance(error, TrainingError):
        from tpu_training.errors.catalog import translate

        error = translate(error)
    kind = InputError if isinstance(error, errors.ParamsError) else type(error)
    return kind.__name__, str(error)


def _error(kind: str, text: str) -> TrainingError:
    error: TrainingError = getattr(errors, kind)(text)
    return error


def _tensorflow_runs() -> bool:
    eager = sys.modules.get("tensorflow.python.eager.context")
    context = getattr(eager, "_context", None)
    return bool(getattr(context, "_initialized", False))
