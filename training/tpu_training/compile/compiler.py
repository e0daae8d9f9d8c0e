"""Google's TPU compiler, libtpu, in a child process: what it needs, says and fails with.

The child (pjrt.py) crashes, runs out of memory and is killed without harm to this process. What it
says of a program comes from its dump, in text files that it writes long before it ends.
"""

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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import tpu_training
from tpu_training.compile import answer as facts
from tpu_training.compile import hlo
from tpu_training.compile.answer import Buffer, Compiled, Program, Topology
from tpu_training.compile.costs import count_costs, count_cycles
from tpu_training.compile.pjrt import environment, is_out_of_memory
from tpu_training.compile.session import versions
from tpu_training.errors import InputError, Interrupted, TrainingError
from tpu_training.errors.catalog import NO_TENSORFLOW

_QUICK_LIMIT_SECONDS, _FULL_LIMIT_SECONDS = 900.0, 7200.0
_WATCH_SECONDS, _PAUSE_SECONDS = 0.5, 0.05


def compile_program(
    program: Program,
    topology: Topology,
    *,
    full: bool = False,
    progress: facts.Watch | None = None,
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
    with _work_folder() as folder:
        work = _Compilation(folder, libtpu, program, topology)
        work.write_request()
        with _compiler_process(folder, topology.accelerator_type) as child:
            try:
                return work.wait(child, limit, full, progress or (lambda _: None))
            except TimeoutError:
                raise TrainingError(
                    f"the compiler was stopped: {program.name!r} took longer than {limit:.0f} s; "
                    "try a smaller program, or a machine with less other work"
                ) from None


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
            # Shardings of the dialect `sdy` are for this partitioner; GSPMD does not know them.
            "shardy": program.format == "mlir" and b"sdy" in program.hlo,
        }
        (self.folder / "request.json").write_text(json.dumps(request), encoding="utf-8")

    def wait(
        self, child: subprocess.Popen[bytes], limit: float, full: bool, watch: facts.Watch
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
                watch(facts.Progress(seconds, known))
            if seconds >= shown + _WATCH_SECONDS:
                shown = seconds
                watch(facts.Progress(seconds, known))
        return self._end(child.returncode, full)

    def _end(self, code: int, full: bool) -> Compiled:
        """Return the answer of a child that has ended."""
        answer = self._json("answer.json")
        if answer is None:
            log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
            raise crashed(self.libtpu, self.program, code, log)
        if (needed := answer.get("needed_bytes")) is not None:
            estimate = read_estimate(self.dump, needed) if full else None
            return dataclasses.replace(self._read(), estimate=estimate)
        error = answer.get("error", "")
        if is_out_of_memory(error):
            return self._read(error)
        raise refused(answer, self.program, self.topology)

    def _read(self, error: str | None = None) -> Compiled:
        libtpu, topology = self.libtpu, self.topology
        limit: int | None = (self._json("topology.json") or {}).get("limit_bytes")
        if limit is None:
            raise InputError(
                f"{libtpu.name} does not say how much memory a core of {topology.accelerator_type} "
                "has: pip install --upgrade libtpu"
            )
        try:
            return read_report(self.dump, self.program, topology, libtpu.name, limit, error)
        except (ValueError, KeyError, IndexError) as problem:
            raise TrainingError(
                f"the report of {libtpu.name} can't be read ({problem}): this package knows those "
                "of 0.0.21 and 0.0.52; pip install libtpu==0.0.52"
            ) from problem

    def _json(self, name: str) -> dict[str, Any] | None:
        file = self.folder / name
        if not file.exists():
            return None
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return content


# --- The child process.

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# Settings that libtpu reads: an unknown flag ends it, others change what it answers.
_NOT_KEPT = ("LIBTPU_", "MEGASCALE_", "PJRT_", "TPU_", "XLA_")
# libtpu 0.0.21 makes it whatever ALLOW_MULTIPLE_LIBTPU_LOAD says; it is /tmp, not TMPDIR.
_LOCK_FILE = Path("/tmp/libtpu_lockfile")


@contextlib.contextmanager
def _work_folder() -> Iterator[Path]:
    """Provide a temporary folder that is removed also if this process is told to end."""
    with _signals_raise():
        folder = Path(tempfile.mkdtemp(prefix="tpu-compile-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _compiler_process(folder: Path, accelerator_type: str) -> Iterator[subprocess.Popen[bytes]]:
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
            # Unless another process holds it.
            with contextlib.suppress(OSError), _LOCK_FILE.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _LOCK_FILE.unlink()


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
    # The child finds this package where this process did.
    package = str(Path(tpu_training.__file__).resolve().parents[1])
    path = os.pathsep.join([*(os.path.abspath(entry) for entry in sys.path if entry), package])
    # libtpu writes logs of its own to TMPDIR.
    return {**kept, **environment(accelerator_type), "TMPDIR": str(folder), "PYTHONPATH": path}


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Let signals that would end this process at once raise Interrupted; main thread only.

    A handler that is set already stays.
    """
    main = threading.current_thread() is threading.main_thread()
    ending = [n for n in _SIGNALS if main and signal.getsignal(n) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(f"received {signal.Signals(number).name} while compiling; start it again")


# --- What the machine has, and lacks.

# Memory of the compiler's process, without TensorFlow, in GiB, as measured for ResNet-50 and BERT.
QUICK_GIB, FULL_GIB = 1.2, 4.0
# Programs of this TensorFlow end this libtpu and older ones: "unique_id < INT32_MAX".
_NEW_TENSORFLOW, _OLD_LIBTPU = (2, 21), (0, 0, 21)
_UPGRADE = (
    "pip install --upgrade libtpu (Python 3.10 gets none newer than 0.0.21: use 3.11 or later)"
)


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


def machine_problems() -> Iterator[str]:
    """Yield what is wrong with the machine and its libtpu, with the cure."""
    try:
        libtpu = find_libtpu()
    except InputError as error:
        yield str(error)
        return
    tensorflow = versions()["tensorflow"]
    new = tensorflow and _numbers(tensorflow) >= _NEW_TENSORFLOW
    if new and _numbers(libtpu.version)[:3] <= _OLD_LIBTPU:
        yield (
            f"{libtpu.name} is older than TensorFlow {tensorflow} and ends when it reads its "
            f"programs: {_UPGRADE}"
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
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        # What the container uses and can give back, the page cache, doesn't count.
        cache = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)
        free.append(limit - used + (int(cache[1]) if cache else 0))
    return min(free) / 2**30 if free else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


# --- Its failures.

# How Google's programs begin the line that says why they end.
_FATAL = re.compile(r"^F\d{4} .*?\] (.*)$|^(.*Check failed: .*)$", re.M)
_OLD = re.compile(r"unique_id_? < INT32_MAX")
_LONGEST = 600


def crashed(libtpu: Libtpu, program: Program, code: int, log: str) -> TrainingError:
    """Return the error for a child that ended with exit code `code`, negative for a signal."""
    reason = _reason(log)
    if _OLD.search(log):
        return InputError(
            f"{libtpu.name} is older than the framework that wrote the program and can't read "
            f"it: {_UPGRADE} [{reason}]"
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
        + (f" [{reason}]" if reason else " without a word")
        + "; try another version: pip install libtpu==VERSION"
    )


def refused(answer: dict[str, Any], program: Program, topology: Topology) -> TrainingError:
    """Return the error for an answer that is no compiled program."""
    tpu = topology.accelerator_type
    if words := answer.get("topology_error"):
        return InputError(f"libtpu knows no TPU {tpu} ({topology.name}): {_short(words)}")
    if (devices := answer.get("too_few_devices")) is not None:
        return InputError(
            f"{program.name!r} is for {program.replicas * program.partitions} cores "
            f"(replicas={program.replicas}, partitions={program.partitions}), but {tpu} has "
            f"{devices}: choose a larger TPU or fewer replicas"
        )
    return InputError(
        f"the TPU compiler refuses {program.name!r} for {tpu}: {_short(answer['error'])}"
    )


def _reason(log: str) -> str:
    """Return the line of a log that says why a process ended."""
    for match in _FATAL.finditer(log):
        return _short(match[1] or match[2])
    return _short(log.strip().rpartition("\n")[2])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


# --- What it says of a program.


def read_report(
    dump: Dump,
    program: Program,
    topology: Topology,
    compiler: str,
    limit_bytes: int,
    error: str | None = None,
) -> Compiled:
    """Return the answer without an estimate; `error` says that memory does not suffice.

    libtpu 0.0.21 says so only minutes after it has dumped how much is needed: then that decides.

    Raises:
        ValueError: The dump is not as this module knows it.
    """
    module = hlo.parse_module(dump.optimized())
    names = [argument.name for argument in program.arguments]
    file = program.name if program.format == "mlir" else ""
    origins = hlo.Origins(module, names, file)
    allocations = parse_allocations(dump.buffers())
    if not allocations:
        raise ValueError("no buffer assignment")
    # What the out-of-memory error names.
    needed = sum(allocation.bytes for allocation in allocations)
    if needed > limit_bytes and error is None:
        error = f"needs {needed / 2**30:.2f} GiB of {limit_bytes / 2**30:.2f} GiB"
    usage: Counter[facts.UsageKind] = Counter()
    for allocation in allocations:
        usage[_kind(allocation, program.arguments)] += allocation.bytes
    peak = parse_peak((dump.live_ranges(), dump.buffers()))
    return Compiled(
        program=program.name,
        topology=topology,
        compiler=compiler,
        needed_bytes=needed,
        limit_bytes=limit_bytes,
        usage=tuple(facts.Usage(kind, size) for kind, size in usage.most_common() if size),
        buffers=_largest_buffers(allocations, peak, program.arguments, origins.of),
        costs=None if error else count_costs(module, origins),
        error=error,
    )


def read_estimate(dump: Dump, needed_bytes: int) -> facts.Estimate:
    """Return the compiler's own cycles of the finished program, and the memory that it needs."""
    module = hlo.parse_module(dump.generated() or dump.optimized())
    return facts.Estimate(count_cycles(module), needed_bytes)


# Written after all that is read here but the code: then only code generation is left.
_LAST = "*.after_optimizations_after_buffer_assignment.txt"


@dataclass(frozen=True)
class Dump:
    """A folder that the compiler dumps into. What is not there (yet) is ""."""

    folder: Path

    def is_optimized(self) -> bool:
        """Whether the optimized program and its memory are written."""
        file = self._file(_LAST)
        # The brace ends a module's text, so the file is whole.
        return file is not None and file.read_bytes()[-8:].rstrip().endswith(b"}")

    def optimized(self) -> str:
        """Return the text of the optimized program."""
        return self._text("*.after_optimizations.txt")

    def generated(self) -> str:
        """Return the text of the program after code generation."""
        return self._text("*.after_codegen.txt")

    def buffers(self) -> str:
        """Return the text of the buffer assignment."""
        return self._text("*.after_optimizations-buffer-assignment.txt")

    def live_ranges(self) -> str:
        """Return the text of the live ranges; older versions put it into the buffers'."""
        return self._text("*.after_optimizations-live-range.txt")

    def _text(self, pattern: str) -> str:
        file = self._file(pattern)
        return file.read_text(encoding="utf-8", errors="replace") if file else ""

    def _file(self, pattern: str) -> Path | None:
        """Return the file of the greatest module: small ones are the compiler's own helpers."""
        files = list(self.folder.glob(pattern))
        return max(files, key=lambda file: file.stat().st_size, default=None)


# The text is XLA's BufferAssignment::ToString and HloLiveRange::ToString. libtpu 0.0.52 writes them
# into two files, 0.0.21 both into the first.
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*)")
_COLOR = re.compile(r"^color (\d+)")
_OF_CALLED = "thread-local"
_PARAMETER = re.compile(r"\bparameter (\d+)")
_VALUE = re.compile(r"^ value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\): (.*)")
_PEAK = re.compile(r"^ *Live ranges at \d+ \(peak\):")
_LIVE = re.compile(r"^ +(\S+): \d+ bytes \(cumulative")
_PART = re.compile(r"^(.*?)(?:\{([\d,]+)\})?$")
_SHOWN = 10

Origin = Callable[[str, int | None], tuple[str, str]]
"""From an instruction's name and the index of a part of its tuple to (operation, "FILE:LINE")."""


@dataclass(frozen=True)
class Value:
    """A value in an allocation: an instruction's name, or "NAME{1}" for a part of its tuple."""

    name: str
    bytes: int
    offset: int
    shape: str


@dataclass
class Allocation:
    """A piece of HBM, which several values may share one after the other.

    Attributes:
        parameter: The number of the program's parameter that it holds, if it holds one.
    """

    bytes: int
    parameter: int | None
    values: list[Value] = field(default_factory=list)


def parse_allocations(text: str) -> list[Allocation]:
    """Return the allocations in HBM, memory space 0; others are on the chip.

    Those that are thread-local are left out: they are the arguments and results of a computation
    that another one calls (a gather on v5p's SparseCore, the sum of a reduction), which has them
    among its own. The account of the finished program does not count them either.
    """
    allocations: list[Allocation] = []
    inside = False
    for line in text.splitlines():
        if match := _ALLOCATION.match(line):
            color, parameter = _COLOR.match(match[2]), _PARAMETER.search(match[2])
            inside = (color is None or color[1] == "0") and _OF_CALLED not in match[2]
            if inside:
                number = int(parameter[1]) if parameter else None
                allocations.append(Allocation(int(match[1]), number))
        elif inside and (match := _VALUE.match(line)):
            value = Value(match[1].removesuffix("{}"), int(match[2]), int(match[3]), match[4])
            allocations[-1].values.append(value)
        elif not line.startswith(" "):
            inside = False
    return allocations


def parse_peak(texts: Iterable[str]) -> set[str]:
    """Return the names of the values that live when most memory is needed."""
    found: set[str] = set()
    for text in texts:
        inside = False
        for line in text.splitlines():
            if _PEAK.match(line):
                inside = True
            elif inside and (match := _LIVE.match(line)):
                found.add(match[1].removesuffix("{}"))
            else:
                inside = False
    return found


def _kind(allocation: Allocation, arguments: Sequence[facts.Argument]) -> facts.UsageKind:
    number = allocation.parameter
    if number is None:
        return "activations and temporaries"
    return arguments[number].kind if number < len(arguments) else "other"


def _largest_buffers(
    allocations: Sequence[Allocation],
    peak: Collection[str],
    arguments: Sequence[facts.Argument],
    origin: Origin,
) -> tuple[Buffer, ...]:
    """Return the largest buffers that live at the fullest moment; arguments always live.

    Where the compiler does not say what lives then, they are the largest of the whole program.
    Of the values that share a place one after the other, the largest counts.
    """
    places: dict[tuple[int, int], tuple[Allocation, Value]] = {}
    for number, allocation in enumerate(allocations):
        for value in allocation.values:
            if not peak or allocation.parameter is not None or value.name in peak:
                _, kept = places.get((number, value.offset), (allocation, value))
                places[number, value.offset] = allocation, max(kept, value, key=lambda v: v.bytes)
    ordered = sorted(places.values(), key=lambda place: -place[1].bytes)
    return tuple(_buffer(*place, arguments, origin) for place in ordered[:_SHOWN])


def _buffer(
    allocation: Allocation, value: Value, arguments: Sequence[facts.Argument], origin: Origin
) -> Buffer:
    number = allocation.parameter
    unpadded = sum(shape.bytes for shape in hlo.parse_shapes(value.shape))
    if number is not None and number < len(arguments):
        return Buffer(value.bytes, unpadded, value.shape, arguments[number].name)
    match = _PART.match(value.name)
    assert match  # It matches any text.
    index = int(match[2].split(",")[0]) if match[2] else None
    return Buffer(value.bytes, unpadded, value.shape, match[1], *origin(match[1], index))
