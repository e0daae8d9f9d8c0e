"""What the compiler says of a program: its dump, the memory it needs, its own estimate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_training.compile.costs import count_costs, count_custom_calls, count_cycles
from tpu_training.compile.hlo import Origins, parse_module, parse_shapes
from tpu_training.compile.result import (
    Argument,
    Buffer,
    Compiled,
    Estimate,
    Program,
    Topology,
    Usage,
    UsageKind,
)


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
    module = parse_module(dump.optimized())
    names = [argument.name for argument in program.arguments]
    file = program.name if program.format == "mlir" else ""
    origins = Origins(module, program.sources, names, file)
    allocations = parse_allocations(dump.buffers())
    if not allocations:
        raise ValueError("no buffer assignment")
    needed = needed_bytes(allocations)
    if needed > limit_bytes and error is None:
        error = f"needs {needed / 2**30:.2f} GiB of {limit_bytes / 2**30:.2f} GiB"
    peak = parse_peak((dump.live_ranges(), dump.buffers()))
    return Compiled(
        program=program.name,
        topology=topology,
        compiler=compiler,
        needed_bytes=needed,
        limit_bytes=limit_bytes,
        usage=usage(allocations, program.arguments),
        buffers=largest_buffers(allocations, peak, program.arguments, origins.of),
        costs=None if error else count_costs(module, origins),
        error=error,
    )


def read_estimate(dump: Dump, costs: Mapping[str, Any], needed_bytes: int) -> Estimate:
    """Return the compiler's own numbers of the finished program, and the memory that it needs."""
    module = parse_module(dump.generated() or dump.optimized())
    missing = count_custom_calls(module)
    return Estimate(
        cycles=count_cycles(module),
        flops=costs["flops"] + missing,
        bytes_accessed=costs["bytes accessed"],
        optimal_seconds=costs["optimal_seconds"] + missing,
        needed_bytes=needed_bytes,
    )


_OPTIMIZED = "*.after_optimizations.txt"
_BUFFERS = "*.after_optimizations-buffer-assignment.txt"
_LIVE_RANGES = "*.after_optimizations-live-range.txt"
_GENERATED = "*.after_codegen.txt"
# Written after all of the above but the last: then only code generation is left.
_LAST = "*.after_optimizations_after_buffer_assignment.txt"
# The end of a module's text, which says that the file is whole.
_END = b"}"


@dataclass(frozen=True)
class Dump:
    """A folder that the compiler dumps into."""

    folder: Path

    def is_optimized(self) -> bool:
        """Whether the optimized program and its memory are written."""
        file = self._file(_LAST)
        return file is not None and file.read_bytes()[-8:].rstrip().endswith(_END)

    def optimized(self) -> str:
        """Return the text of the optimized program, or ""."""
        return self._text(_OPTIMIZED)

    def generated(self) -> str:
        """Return the text of the program after code generation, or ""."""
        return self._text(_GENERATED)

    def buffers(self) -> str:
        """Return the text of the buffer assignment, or ""."""
        return self._text(_BUFFERS)

    def live_ranges(self) -> str:
        """Return the text of the live ranges, or "": older versions put it into the buffers'."""
        return self._text(_LIVE_RANGES)

    def _text(self, pattern: str) -> str:
        file = self._file(pattern)
        return file.read_text(encoding="utf-8", errors="replace") if file else ""

    def _file(self, pattern: str) -> Path | None:
        """Return the file of the greatest module: small ones are the compiler's own helpers."""
        files = list(self.folder.glob(pattern))
        return max(files, key=lambda file: file.stat().st_size, default=None)


_SHOWN = 10
_PART = re.compile(r"^(.*?)(?:\{([\d,]+)\})?$")

# From an instruction's name and the index of a part of its tuple to (operation, "FILE:LINE").
Origin = Callable[[str, int | None], tuple[str, str]]


def needed_bytes(allocations: Sequence[Allocation]) -> int:
    """Return the HBM that a program needs, which is what the out-of-memory error names."""
    return sum(allocation.bytes for allocation in allocations)


def usage(allocations: Sequence[Allocation], arguments: Sequence[Argument]) -> tuple[Usage, ...]:
    """Return what uses the memory, greatest first. Arguments without a description are "other"."""
    found: Counter[UsageKind] = Counter()
    for allocation in allocations:
        found[_kind(allocation, arguments)] += allocation.bytes
    return tuple(Usage(kind, size) for kind, size in found.most_common() if size)


def largest_buffers(
    allocations: Sequence[Allocation],
    peak: Collection[str],
    arguments: Sequence[Argument],
    origin: Origin,
) -> tuple[Buffer, ...]:
    """Return the largest buffers that live at the fullest moment.

    Where the compiler does not say what lives then, they are the largest of the whole program.
    """
    places: dict[tuple[int, int], tuple[Allocation, Value]] = {}
    for number, allocation in enumerate(allocations):
        for value in _living(allocation, peak):
            _, kept = places.get((number, value.offset), (allocation, value))
            places[number, value.offset] = allocation, max(kept, value, key=lambda v: v.bytes)
    ordered = sorted(places.values(), key=lambda place: -place[1].bytes)
    return tuple(_buffer(*place, arguments, origin) for place in ordered[:_SHOWN])


def _kind(allocation: Allocation, arguments: Sequence[Argument]) -> UsageKind:
    number = allocation.parameter
    if number is None:
        return "activations and temporaries"
    return arguments[number].kind if number < len(arguments) else "other"


def _living(allocation: Allocation, peak: Collection[str]) -> Iterator[Value]:
    """Yield the values of an allocation at the fullest moment; arguments always live."""
    for value in allocation.values:
        if not peak or allocation.parameter is not None or value.name in peak:
            yield value


def _buffer(
    allocation: Allocation, value: Value, arguments: Sequence[Argument], origin: Origin
) -> Buffer:
    number = allocation.parameter
    name, index = _split(value.name)
    unpadded = sum(shape.bytes for shape in parse_shapes(value.shape))
    if number is not None and number < len(arguments):
        return Buffer(value.bytes, unpadded, value.shape, arguments[number].name)
    return Buffer(value.bytes, unpadded, value.shape, name, *origin(name, index))


def _split(name: str) -> tuple[str, int | None]:
    match = _PART.match(name)
    if match is None or match[2] is None:
        return name, None
    return match[1], int(match[2].split(",")[0])


# The text is XLA's BufferAssignment::ToString and HloLiveRange::ToString. libtpu 0.0.52 writes them
# into two files, 0.0.21 both into the first.
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*)")
_COLOR = re.compile(r"^color (\d+)")
_OF_CALLED = "thread-local"
_PARAMETER = re.compile(r"\bparameter (\d+)")
_VALUE = re.compile(r"^ value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\): (.*)")
_PEAK = re.compile(r"^ *Live ranges at \d+ \(peak\):")
_LIVE = re.compile(r"^ +(\S+): \d+ bytes \(cumulative")


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
            color = _COLOR.match(match[2])
            parameter = _PARAMETER.search(match[2])
            in_hbm = color is None or color[1] == "0"
            inside = in_hbm and _OF_CALLED not in match[2]
            if inside:
                number = int(parameter[1]) if parameter else None
                allocations.append(Allocation(int(match[1]), number))
        elif inside and (match := _VALUE.match(line)):
            value = Value(_plain(match[1]), int(match[2]), int(match[3]), match[4])
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
                found.add(_plain(match[1]))
            else:
                inside = False
    return found


def _plain(name: str) -> str:
    return name.removesuffix("{}")
