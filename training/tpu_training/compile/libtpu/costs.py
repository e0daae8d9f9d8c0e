"""Count what one step costs by the optimized program."""

import math
import re
from collections import Counter
from collections.abc import Iterable

from tpu_training.compile.libtpu.hlo.execution import executed
from tpu_training.compile.libtpu.hlo.flops import flops_of
from tpu_training.compile.libtpu.hlo.module import Computation, Instruction, Module
from tpu_training.compile.libtpu.hlo.origin import Origins
from tpu_training.compile.libtpu.hlo.shapes import Shape
from tpu_training.compile.libtpu.hlo.traffic import moved
from tpu_training.compile.result import Costs, Padding

_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)"
    r"(-start)?"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# Names that the compiler gives to what it computes again: rematerialization's copies.
_REMAT = re.compile(r"\.remat\d*(?=\.|$)")
_NO_WORK = ("get-tuple-element", "tuple", "bitcast", "parameter")
_CAUSES = 5


def count_costs(module: Module, origins: Origins) -> Costs:
    """Count operations, traffic, padding and collectives of one step."""
    flops, moved_bytes, collective = 0.0, 0, 0
    remat = set()
    padding = _PaddingCount()
    for computation, instruction, times in executed(module):
        flops += times * flops_of(module, computation, instruction)
        shapes = moved(module, computation, instruction)
        moved_bytes += times * sum(shape.tiled_bytes for shape in shapes)
        padding.add(instruction, shapes, times)
        if _COLLECTIVE.fullmatch(instruction.opcode):
            collective += times * _operand_bytes(computation, instruction)
        if _REMAT.search(instruction.name) and instruction.opcode not in _NO_WORK:
            remat.add(instruction.name)
    return Costs(
        flops, float(moved_bytes), float(padding.bytes), padding.causes(origins), collective,
        len(remat),
    )  # fmt: skip


def count_cycles(module: Module) -> int | None:
    """Return the sum of the cycles that the compiler estimates; None if it says none.

    Only the program after code generation has them.
    """
    found = [
        times * int(cycles[1])
        for _, instruction, times in executed(module)
        if (cycles := _CYCLES.search(instruction.attributes))
    ]
    return sum(found) if found else None


def count_custom_calls(module: Module) -> int:
    """Return the number of custom calls, each of which takes 1 from the cost analysis' sums.

    Those that only allocate take nothing.
    """
    return sum(
        instruction.opcode == "custom-call" and "AllocateBuffer" not in instruction.attributes
        for computation in module.computations.values()
        for instruction in computation.instructions.values()
    )


def _operand_bytes(computation: Computation, instruction: Instruction) -> int:
    shapes = (computation.shapes_of(operand) for operand in instruction.operands)
    return sum(shape.bytes for operand in shapes for shape in operand)


class _PaddingCount:
    """Sums the traffic that is padding, by the dimension that grew."""

    def __init__(self) -> None:
        self.bytes = 0
        self._by_cause: Counter[tuple[int, int]] = Counter()
        self._greatest: dict[tuple[int, int], tuple[float, Instruction]] = {}

    def add(self, instruction: Instruction, shapes: Iterable[Shape], times: int) -> None:
        for shape in shapes:
            wasted = times * (shape.tiled_bytes - shape.bytes)
            self.bytes += wasted
            for size, padded, share in shape.padded_dims() if wasted else ():
                self._by_cause[size, padded] += math.floor(wasted * share)
                known = self._greatest.get((size, padded), (0.0, instruction))
                here = (wasted * share, instruction)
                self._greatest[size, padded] = max(known, here, key=lambda pair: pair[0])

    def causes(self, origins: Origins) -> tuple[Padding, ...]:
        return tuple(
            Padding(*cause, wasted, *origins.of(self._greatest[cause][1].name))
            for cause, wasted in self._by_cause.most_common(_CAUSES)
        )
