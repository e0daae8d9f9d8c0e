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
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import tpu_training
from tpu_training.compile import answer as facts, costs, hlo, pjrt
from tpu_training.errors import NO_TENSORFLOW, InputError, TrainingError

_QUICK_LIMIT_SECONDS, _FULL_LIMIT_SECONDS = 900.0, 7200.0
_WATCH_SECONDS, _PAUSE_SECONDS = 0.5, 0.05


def compile_program(
    program: facts.Program,
    topology: facts.Topology,
    *,
    full: bool = False,
    progress: Callable[[float], None] = lambda _: None,
    time_limit: float | None = None,
) -> facts.Compiled:
    """Compile `program` for `topology` and return what libtpu says.

    Without `full` the compiler is stopped before it generates code, as soon as memory and the
    optimized program are known: seconds instead of minutes, and 0.5 GB instead of up to 4 GB.
    A program that needs too much memory is no error: the answer then says so (`fits`).

    Args:
        progress: Called twice a second with the seconds so far, while code is generated.
        time_limit: In seconds; a quarter of an hour, or two hours with `full`, if None.

    Raises:
        TrainingError: There is no libtpu, it refuses the program, crashes or takes too long.
            Nothing is left behind.
    """
    libtpu = find_libtpu()
    limit = time_limit or (_FULL_LIMIT_SECONDS if full else _QUICK_LIMIT_SECONDS)
    # If SIGTERM ends this process, the child removes what is left; see pjrt.py.
    with tempfile.TemporaryDirectory(prefix="tpu-compile-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        work = _Compilation(folder, libtpu, program, topology)
        work.write_request()
        with _compiler_process(folder, topology.accelerator_type) as child:
            try:
                return work.wait(child, limit, full, progress)
            except TimeoutError:
                raise TrainingError(
                    f"the compiler was stopped, because {program.name!r} took longer than "
                    f"{limit:.0f} s; try a smaller program, or a machine that is less busy"
                ) from None


@dataclass(frozen=True)
class _Compilation:
    """One compilation in its folder."""

    folder: Path
    libtpu: Libtpu
    program: facts.Program
    topology: facts.Topology

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
        self,
        child: subprocess.Popen[bytes],
        limit: float,
        full: bool,
        progress: Callable[[float], None],
    ) -> facts.Compiled:
        """Return the answer as soon as it is known."""
        optimized, shown = False, 0.0
        for seconds in ticks(child, limit):
            if not optimized and self.dump.is_optimized():
                optimized = True
                if not full:
                    child.kill()  # It would generate code while the dump is read.
                known = self._read()
                if not full or not known.fits:
                    return known
            if optimized and seconds >= shown + _WATCH_SECONDS:
                shown = seconds
                progress(seconds)
        return self._end(child.returncode, full)

    def _end(self, code: int, full: bool) -> facts.Compiled:
        """Return the answer of a child that has ended."""
        answer = self._json("answer.json")
        if answer is None:
            log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
            raise crashed(self.libtpu, self.program, code, log)
        if (needed := answer.get("needed_bytes")) is not None:
            estimate = read_estimate(self.dump, needed) if full else None
            return dataclasses.replace(self._read(), estimate=estimate)
        error = answer.get("error", "")
        if pjrt.is_out_of_memory(error):
            return self._read(error)
        raise refused(answer, self.program, self.topology)

    def _read(self, error: str | None = None) -> facts.Compiled:
        libtpu, topology = self.libtpu, self.topology
        limit: int | None = (self._json("topology.json") or {}).get("limit_bytes")
        if limit is None:
            raise InputError(
                f"{libtpu.name} doesn't report the memory of a core of "
                f"{topology.accelerator_type}: pip install --upgrade libtpu"
            )
        try:
            return read_report(self.dump, self.program, topology, libtpu.name, limit, error)
        except (ValueError, KeyError, IndexError) as problem:
            raise TrainingError(
                f"the report of {libtpu.name} can't be read ({problem}); this package reads those "
                "of 0.0.21 and 0.0.52: pip install libtpu==0.0.52"
            ) from problem

    def _json(self, name: str) -> dict[str, Any] | None:
        file = self.folder / name
        if not file.exists():
            return None
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return content


# --- The child process.

# Settings that libtpu reads: an unknown flag ends it, others change what it answers.
_NOT_KEPT = ("LIBTPU_", "MEGASCALE_", "PJRT_", "TPU_", "XLA_")


@contextlib.contextmanager
def _compiler_process(folder: Path, accelerator_type: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child on `folder`; end it when the context does, if it still runs."""
    locked = pjrt.LOCK_FILE.exists()
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
            with contextlib.suppress(OSError), pjrt.LOCK_FILE.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                pjrt.LOCK_FILE.unlink()


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
    return {**kept, **pjrt.environment(accelerator_type), "TMPDIR": str(folder), "PYTHONPATH": path}


# --- What the machine has, and lacks.

# Each of these installs the same modules; the first one found has the version.
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow-cpu", "tensorflow-tpu", "tensorflow", "tf-nightly"),
    "libtpu": ("libtpu", "libtpu-nightly"),
}
# Programs of this TensorFlow end this libtpu and older ones: "unique_id < INT32_MAX".
_NEW_TENSORFLOW, _OLD_LIBTPU = (2, 21), (0, 0, 21)
_UPGRADE = (
    "pip install --upgrade libtpu (Python 3.10 has none newer than 0.0.21; use 3.11 or later)"
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
            f"Google's TPU compiler, libtpu, exists for Linux x86-64 only, and this is {system} "
            f"{machine}; compile in a container (docker run --platform linux/amd64 python:3.11) "
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


def versions() -> dict[str, str | None]:
    """Return the versions of this package, TensorFlow and libtpu; None for what is missing."""
    found: dict[str, str | None] = {"tpu-stack-training": tpu_training.__version__}
    for library, names in _DISTRIBUTIONS.items():
        found[library] = next(filter(None, map(_version, names)), None)
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def machine_problems(*, lowers: bool) -> Iterator[str]:
    """Yield what this machine lacks to compile, with the cure; TensorFlow, if it `lowers` a job."""
    if lowers and importlib.util.find_spec("tensorflow") is None:
        yield (
            "TensorFlow, which creates the program to compile, is not installed: pip install "
            f"'tpu-stack-training[cpu,compile]' [{NO_TENSORFLOW}]"
        )
    try:
        libtpu = find_libtpu()
    except InputError as error:
        yield str(error)
        return
    tensorflow = versions()["tensorflow"]
    new = tensorflow and _numbers(tensorflow) >= _NEW_TENSORFLOW
    if new and _numbers(libtpu.version)[:3] <= _OLD_LIBTPU:
        yield (
            f"{libtpu.name} is older than TensorFlow {tensorflow} and crashes when it reads its "
            f"programs: {_UPGRADE}"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


# --- Its failures.

# How Google's programs begin the line that says why they end.
_FATAL = re.compile(r"^F\d{4} .*?\] (.*)$|^(.*Check failed: .*)$", re.M)
_OLD = re.compile(r"unique_id_? < INT32_MAX")
_LONGEST = 600


def crashed(libtpu: Libtpu, program: facts.Program, code: int, log: str) -> TrainingError:
    """Return the error for a child that ended with exit code `code`, negative for a signal."""
    reason = _reason(log)
    if _OLD.search(log):
        return InputError(
            f"{libtpu.name} is older than the framework that wrote the program and can't read "
            f"it: {_UPGRADE} [{reason}]"
        )
    if code == -signal.SIGKILL:
        return TrainingError(
            f"the compiler was killed (SIGKILL) while it compiled {program.name!r}, which happens "
            "when memory runs out; ResNet-50 and BERT-base take up to 4 GB with code generation, "
            "and 0.5 GB with --quick; free memory, or compile on a larger machine"
        )
    ending = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return TrainingError(
        f"{libtpu.name} crashed on {program.name!r}: it ended {ending}"
        + (f" [{reason}]" if reason else " without a message")
        + "; try another version: pip install libtpu==VERSION"
    )


def refused(
    answer: dict[str, Any], program: facts.Program, topology: facts.Topology
) -> TrainingError:
    """Return the error for an answer that is no compiled program."""
    tpu = topology.accelerator_type
    if words := answer.get("topology_error"):
        return InputError(f"libtpu doesn't know the TPU {tpu} ({topology.name}): {_short(words)}")
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
    program: facts.Program,
    topology: facts.Topology,
    compiler: str,
    limit_bytes: int,
    error: str | None = None,
) -> facts.Compiled:
    """Return the answer without an estimate; `error` says that memory does not suffice.

    libtpu 0.0.21 says so only minutes after it has dumped how much is needed: then that decides.

    Raises:
        ValueError: The dump is not as this module knows it.
    """
    module = hlo.parse_module(dump.text("after_optimizations"))
    names = [argument.name for argument in program.arguments]
    file = program.name if program.format == "mlir" else ""
    origins = hlo.Origins(module, names, file)
    buffers = dump.text("after_optimizations-buffer-assignment")
    allocations = parse_allocations(buffers)
    if not allocations:
        raise ValueError("no buffer assignment")
    # What the out-of-memory error names.
    needed = sum(allocation.bytes for allocation in allocations)
    if needed > limit_bytes and error is None:
        error = f"needs {needed / 2**30:.2f} GiB of {limit_bytes / 2**30:.2f} GiB"
    usage: Counter[facts.UsageKind] = Counter()
    for allocation in allocations:
        usage[_kind(allocation, program.arguments)] += allocation.bytes
    peak = parse_peak((dump.text("after_optimizations-live-range"), buffers))
    return facts.Compiled(
        program=program.name,
        topology=topology,
        compiler=compiler,
        needed_bytes=needed,
        limit_bytes=limit_bytes,
        usage=tuple(facts.Usage(kind, size) for kind, size in usage.most_common() if size),
        buffers=_largest_buffers(allocations, peak, program.arguments, origins.of),
        costs=None if error else costs.count_costs(module, origins),
        error=error,
    )


def read_estimate(dump: Dump, needed_bytes: int) -> facts.Estimate:
    """Return the compiler's own cycles of the finished program, and the memory that it needs."""
    module = hlo.parse_module(dump.text("after_codegen") or dump.text("after_optimizations"))
    return facts.Estimate(costs.count_cycles(module), needed_bytes)


@dataclass(frozen=True)
class Dump:
    """A folder that the compiler dumps into."""

    folder: Path

    def is_optimized(self) -> bool:
        """Whether all that is read here but the code is written: only its generation is left."""
        # This file is the last one. The brace ends a module's text, so the file is whole.
        return self.text("after_optimizations_after_buffer_assignment").rstrip().endswith("}")

    def text(self, stage: str) -> str:
        """Return what a stage of the compiler has written; "" while it is not there.

        Of several modules it is the greatest: small ones are the compiler's own helpers. Older
        versions put live ranges into the file of the buffers.
        """
        files = self.folder.glob(f"*.{stage}.txt")
        file = max(files, key=lambda file: file.stat().st_size, default=None)
        return file.read_text(encoding="utf-8", errors="replace") if file else ""


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
) -> tuple[facts.Buffer, ...]:
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
) -> facts.Buffer:
    number = allocation.parameter
    unpadded = sum(shape.bytes for shape in hlo.parse_shapes(value.shape))
    if number is not None and number < len(arguments):
        return facts.Buffer(value.bytes, unpadded, value.shape, arguments[number].name)
    match = _PART.match(value.name)
    assert match  # It matches any text.
    index = int(match[2].split(",")[0]) if match[2] else None
    return facts.Buffer(value.bytes, unpadded, value.shape, match[1], *origin(match[1], index))
