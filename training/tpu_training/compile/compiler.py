"""Google's TPU compiler, libtpu, in a child process: what it needs, says and fails with."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import tpu_training
from tpu_training.compile.pjrt import environment, is_out_of_memory
from tpu_training.compile.report import Dump, read_estimate, read_report
from tpu_training.compile.request import versions
from tpu_training.compile.result import Compiled, Program, Progress, Topology, Watch
from tpu_training.errors import InputError, Interrupted, TrainingError
from tpu_training.errors.catalog import NO_TENSORFLOW

_QUICK_LIMIT_SECONDS = 900.0
_FULL_LIMIT_SECONDS = 7200.0
_WATCH_SECONDS = 0.5


def compile_program(
    program: Program,
    topology: Topology,
    *,
    full: bool = False,
    progress: Watch | None = None,
    time_limit: float | None = None,
) -> Compiled:
    """Compile `program` for `topology` and return what libtpu says.

    Without `full` the compiler is stopped before it generates code, as soon as memory and the
    optimized program are known: seconds instead of minutes, and 0.5 GB instead of up to 4 GB.
    A program that needs too much memory is no error: the answer then says so (`fits`).

    Args:
        progress: Called twice a second.
        time_limit: In seconds; a quarter of an hour, or two hours with `full`, if None.

    Raises:
        TrainingError: There is no libtpu, it refuses the program, crashes or takes too long.
            Nothing is left behind.
    """
    libtpu = find_libtpu()
    limit = time_limit or (_FULL_LIMIT_SECONDS if full else _QUICK_LIMIT_SECONDS)
    with work_folder() as folder:
        work = _Compilation(folder, libtpu, program, topology)
        work.write_request()
        with compiler_process(folder, topology.accelerator_type) as child:
            try:
                return work.wait(child, limit, full, progress or (lambda _: None))
            except TimeoutError:
                raise timed_out(program, limit) from None


@dataclass(frozen=True)
class _Compilation:
    """One compilation in its folder."""

    folder: Path
    libtpu: Libtpu
    program: Program
    topology: Topology

    @property
    def dump(self) -> Dump:
        return Dump(self.folder / "dump")

    def write_request(self) -> None:
        """Write what the child reads."""
        program = self.program
        (self.folder / "program").write_bytes(program.hlo)
        request = {
            "library": str(self.libtpu.library),
            "topology": self.topology.name,
            "options": dict(self.topology.options),
            "format": program.format,
            "replicas": program.replicas,
            "partitions": program.partitions,
            # Shardings of the dialect `sdy` are for this partitioner; GSPMD knows them not.
            "shardy": program.format == "mlir" and b"sdy" in program.hlo,
        }
        (self.folder / "request.json").write_text(json.dumps(request), encoding="utf-8")

    def wait(
        self, child: subprocess.Popen[bytes], limit: float, full: bool, watch: Watch
    ) -> Compiled:
        """Return the answer as soon as it is known."""
        known, shown = None, 0.0
        for seconds in ticks(child, limit):
            if known is None and self.dump.is_optimized():
                if not full:
                    child.kill()  # It would generate code while the dump is read.
                known = self._read()
                if not full or not known.fits:
                    return known
                watch(Progress(seconds, known))
            if seconds >= shown + _WATCH_SECONDS:
                shown = seconds
                watch(Progress(seconds, known))
        return self._end(child.returncode, full)

    def _end(self, code: int, full: bool) -> Compiled:
        """Return the answer of a child that has ended."""
        answer = self._json("answer.json")
        if answer is None:
            raise crashed(self.libtpu, self.program, code, self._log())
        if costs := answer.get("costs"):
            known = self._read()
            needed = answer["needed_bytes"]
            estimate = read_estimate(self.dump, costs, needed) if full else None
            return dataclasses.replace(known, estimate=estimate)
        error = answer.get("error", "")
        if is_out_of_memory(error):
            return self._read(error)
        raise refused(answer, self.program, self.topology)

    def _read(self, error: str | None = None) -> Compiled:
        limit = self._limit_bytes()
        try:
            return read_report(
                self.dump, self.program, self.topology, self.libtpu.name, limit, error
            )
        except (ValueError, KeyError, IndexError) as problem:
            raise unreadable(self.libtpu, problem) from problem

    def _limit_bytes(self) -> int:
        limit: int | None = (self._json("topology.json") or {}).get("limit_bytes")
        if limit is None:
            raise no_limit(self.libtpu, self.topology)
        return limit

    def _json(self, name: str) -> dict[str, Any] | None:
        file = self.folder / name
        if not file.exists():
            return None
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return content

    def _log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")


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
def compiler_process(folder: Path, accelerator_type: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child on `folder`; end it when the context does, if it still runs."""
    locked = _LOCK_FILE.exists()
    with (folder / "log").open("wb") as log:
        # The folder is the working directory: no file of the user's can stand in for a module.
        child = subprocess.Popen(
            [sys.executable, "-m", "tpu_training.compile.pjrt", str(folder)],
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


def ticks(child: subprocess.Popen[bytes], limit: float) -> Iterator[float]:
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


@dataclass(frozen=True)
class Libtpu:
    """An installed libtpu."""

    library: Path
    version: str

    @property
    def name(self) -> str:
        """Its name for messages, "libtpu 0.0.52"."""
        return f"libtpu {self.version}"


def find_libtpu() -> Libtpu:
    """Return the libtpu of this Python.

    Raises:
        InputError: It is not installed, or does not exist for this machine.
    """
    system, machine = platform.system(), platform.machine()
    if (sys.platform, machine) != ("linux", "x86_64"):
        raise InputError(
            f"Google's TPU compiler, libtpu, exists for Linux x86-64 only and this is {system} "
            f"{machine}: compile in a container (docker run --platform linux/amd64 python:3.11) "
            "or in a CI job"
        )
    found = importlib.util.find_spec("libtpu")
    folders = list(found.submodule_search_locations or []) if found else []
    library = next((file for f in folders if (file := Path(f) / "libtpu.so").is_file()), None)
    if library is None:
        raise InputError(
            "Google's TPU compiler, libtpu, is not installed: pip install "
            "'tpu-stack-training[compile]' (about 150 MB, under Google Cloud's own terms: "
            "https://cloud.google.com/terms)"
        )
    return Libtpu(library, versions()["libtpu"] or "of unknown version")


# Memory of the compiler's process, without TensorFlow, in GiB, as measured for ResNet-50 and BERT.
QUICK_GIB, FULL_GIB = 1.2, 4.0
# Programs of this TensorFlow end this libtpu and older ones: "unique_id < INT32_MAX".
_NEW_TENSORFLOW, _OLD_LIBTPU = (2, 21), (0, 0, 21)


def machine_problems() -> Iterator[str]:
    """Yield what is wrong with the machine and its libtpu, with the cure."""
    try:
        libtpu = find_libtpu()
    except InputError as error:
        yield str(error)
        return
    tensorflow = versions()["tensorflow"]
    if tensorflow and _too_old(libtpu.version, tensorflow):
        yield (
            f"{libtpu.name} is older than TensorFlow {tensorflow} and ends when it reads its "
            "programs: pip install --upgrade libtpu (Python 3.10 gets none newer than 0.0.21: use "
            "3.11 or later)"
        )


def tensorflow_problems() -> Iterator[str]:
    """Yield that TensorFlow is missing, which makes the programs."""
    if importlib.util.find_spec("tensorflow") is None:
        yield (
            "TensorFlow is not installed, which makes the program to compile: pip install "
            f"'tpu-stack-training[cpu,compile]' [{NO_TENSORFLOW}]"
        )


def memory_problems(quick: bool, root: Path = Path("/")) -> Iterator[str]:
    """Yield that the machine lacks the memory to compile."""
    needed = QUICK_GIB if quick else FULL_GIB
    free = free_gib(root)
    if free is not None and free < needed:
        less = "" if quick or free < QUICK_GIB else f", or use --quick, which takes {QUICK_GIB} GiB"
        yield (
            f"this machine has {free:.1f} GiB of free memory and the compiler takes up to "
            f"{needed} GiB; free some, or use a larger machine{less}"
        )


def free_gib(root: Path = Path("/")) -> float | None:
    """Return how much memory a new process can have, within its container; None if unknown."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return None
    match = re.search(r"^MemAvailable: +(\d+) kB", text, re.M)
    free = [int(match[1]) * 1024] if match else []
    group = root / "sys/fs/cgroup"
    # Outside containers the file is missing; without a limit it says "max".
    with contextlib.suppress(OSError, ValueError):
        free.append(int((group / "memory.max").read_text()) - _used(group))
    return min(free) / 2**30 if free else None


def _used(group: Path) -> int:
    """Return what the container uses and can't give back: the page cache doesn't count."""
    used = int((group / "memory.current").read_text())
    match = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)
    return used - (int(match[1]) if match else 0)


def _too_old(libtpu: str, tensorflow: str) -> bool:
    return _numbers(tensorflow) >= _NEW_TENSORFLOW and _numbers(libtpu)[:3] <= _OLD_LIBTPU


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


# How Google's programs begin the line that says why they end.
_FATAL = re.compile(r"^F\d{4} .*?\] (.*)$|^(.*Check failed: .*)$", re.M)
_OLD = re.compile(r"unique_id_? < INT32_MAX")
_LONGEST = 600


def crashed(libtpu: Libtpu, program: Program, code: int, log: str) -> TrainingError:
    """Return the error for a child that ended with exit code `code`, negative for a signal."""
    said = _reason(log)
    if _OLD.search(log):
        return InputError(
            f"{libtpu.name} is older than the framework that wrote the program and can't read "
            f"it: pip install --upgrade libtpu (Python 3.10 gets none newer than 0.0.21: use 3.11 "
            f"or later) [{said}]"
        )
    if code == -signal.SIGKILL:
        return TrainingError(
            f"the compiler was killed (SIGKILL) while it compiled {program.name!r}, as systems do "
            "when memory runs out: ResNet-50 and BERT-base take up to 4 GB with code generation "
            "and 0.5 GB without; free some, or compile on a larger machine"
        )
    ending = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return TrainingError(
        f"{libtpu.name} crashed on {program.name!r}: it ended {ending}"
        + (f" [{said}]" if said else " without a word")
        + "; try another version: pip install libtpu==VERSION"
    )


def timed_out(program: Program, seconds: float) -> TrainingError:
    """Return the error for a child that took too long."""
    return TrainingError(
        f"the compiler was stopped: {program.name!r} took longer than {seconds:.0f} s; try a "
        "smaller program, or a machine with less other work"
    )


def refused(answer: dict[str, Any], program: Program, topology: Topology) -> TrainingError:
    """Return the error for an answer that is no compiled program."""
    if words := answer.get("topology_error"):
        return InputError(
            f"libtpu knows no TPU {topology.accelerator_type} ({topology.name}): {_short(words)}"
        )
    if (devices := answer.get("too_few_devices")) is not None:
        return InputError(
            f"{program.name!r} is for {program.replicas * program.partitions} cores "
            f"(replicas={program.replicas}, partitions={program.partitions}), but "
            f"{topology.accelerator_type} has {devices}: choose a larger TPU or fewer replicas"
        )
    return InputError(
        f"the TPU compiler refuses {program.name!r} for {topology.accelerator_type}: "
        f"{_short(answer['error'])}"
    )


def unreadable(libtpu: Libtpu, error: Exception) -> TrainingError:
    """Return the error for a dump that is not as this package knows it."""
    return TrainingError(
        f"the report of {libtpu.name} can't be read ({error}): this package knows those of 0.0.21 "
        "and 0.0.52; pip install libtpu==0.0.52"
    )


def no_limit(libtpu: Libtpu, topology: Topology) -> TrainingError:
    """Return the error for a libtpu that says nowhere how much memory a core has."""
    return InputError(
        f"{libtpu.name} does not say how much memory a core of {topology.accelerator_type} has: "
        "pip install --upgrade libtpu"
    )


def _reason(log: str) -> str:
    """Return the line of a log that says why a process ended."""
    for match in _FATAL.finditer(log):
        return _short(match[1] or match[2])
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
