"""The compiler's child process: start it, wait for it or for its dump, leave nothing behind."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import tpu_training
from tpu_training.compile.libtpu.options import environment
from tpu_training.errors import Interrupted

_PAUSE_SECONDS = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# Settings that libtpu reads: an unknown flag ends it, others change what it answers.
_NOT_KEPT = ("LIBTPU_", "MEGASCALE_", "PJRT_", "TPU_", "XLA_")
# libtpu 0.0.21 makes it whatever ALLOW_MULTIPLE_LIBTPU_LOAD says; it is /tmp, not TMPDIR.
_LOCK_FILE = Path("/tmp/libtpu_lockfile")


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """Provide a temporary folder that is removed also if this process is told to end."""
    with _signals_raise():
        folder = Path(tempfile.mkdtemp(prefix="tpu-compile-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def compiler_process(folder: Path, accelerator_type: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the child on `folder`; end it when the context does, if it still runs."""
    locked = _LOCK_FILE.exists()
    with (folder / "log").open("wb") as log:
        # The folder is the working directory: no file of the user's can stand in for a module.
        child = subprocess.Popen(
            [sys.executable, "-m", "tpu_training.compile.libtpu.child", str(folder)],
            cwd=folder,
            env=_environment(folder, accelerator_type),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        if child.stdin:
            child.stdin.close()
        if not locked:
            _remove_lock_file()


def ticks(child: "subprocess.Popen[bytes]", limit: float) -> Iterator[float]:
    """Yield the seconds since now, often, while the child runs.

    Raises:
        TimeoutError: It runs longer than `limit` seconds.
    """
    begun = time.monotonic()
    while child.poll() is None:
        passed = time.monotonic() - begun
        if passed > limit:
            raise TimeoutError
        yield passed
        time.sleep(_PAUSE_SECONDS)


def _environment(folder: Path, accelerator_type: str) -> dict[str, str]:
    """Return the child's environment, without settings for programs that run on a TPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_KEPT)}
    # libtpu writes logs of its own there.
    mine = {"TMPDIR": str(folder), "PYTHONPATH": _python_path()}
    return {**kept, **environment(accelerator_type), **mine}


def _python_path() -> str:
    """Return where the child finds this package: where this process did."""
    here = str(Path(tpu_training.__file__).resolve().parents[1])
    return os.pathsep.join([*(os.path.abspath(path) for path in sys.path if path), here])


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Let signals that would end this process at once raise Interrupted; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in kept.items() if handler is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(f"received {signal.Signals(number).name} while compiling; start it again")


def _remove_lock_file() -> None:
    """Remove libtpu's lock file, unless a process holds it."""
    with contextlib.suppress(OSError), _LOCK_FILE.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _LOCK_FILE.unlink()
