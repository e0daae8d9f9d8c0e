"""What needs the memory: arguments by their kind, temporaries, and the largest buffers."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from tpu_training.compile.libtpu.buffers import Allocation, Value
from tpu_training.compile.libtpu.hlo.shapes import parse_shapes
from tpu_training.compile.result import Argument, Buffer, Usage, UsageKind

_SHOWN = 10
_PART = re.compile(r"^(.*?)(?:\{([\d,]+)\})?$")

# From an instruction's name and the index of a part of its tuple to (operation, "FILE:LINE").
Origin = Callable[[str, int | None], tuple[str, str]]


def needed_bytes(allocations: Sequence[Allocation]) -> int:
    """Return the HBM that a program needs, which is what the out-of-memory error names."""
    return sum(allocation.bytes for allocation in allocations)


def usage(allocations: Sequence[Allocation], arguments: Sequence[Argument]) -> tuple[Usage, ...]:
    """Return what uses the memory, greatest first. Arguments that nobody describes are "other"."""
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
