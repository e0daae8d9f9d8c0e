"""Read the compiler's buffer assignment: all allocations, and what lives at the fullest moment.

The text is XLA's BufferAssignment::ToString and HloLiveRange::ToString. libtpu 0.0.52 writes them
into two files, 0.0.21 both into the first.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

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
