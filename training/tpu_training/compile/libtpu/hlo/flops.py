"""Floating-point operations of matrix multiplications and convolutions, from their shapes.

Counted as XLA's cost analysis does (xla/service/hlo_cost_analysis.cc): a multiplication and an
addition are two operations, and positions of a window that lie in the padding are none.
"""

import math
import re

from tpu_training.compile.libtpu.hlo.module import Computation, Instruction, Module

_OPCODES = ("convolution", "dot")


def flops_of(module: Module, computation: Computation, instruction: Instruction) -> float:
    """Return the operations of an instruction; a fusion's are those inside it."""
    if instruction.opcode == "fusion":
        return sum(
            flops_of(module, fused, inner)
            for fused in module.called(instruction, "calls")
            for inner in fused.instructions.values()
            if inner.opcode in (*_OPCODES, "fusion")
        )
    if instruction.opcode == "convolution":
        return _convolution(computation, instruction)
    if instruction.opcode == "dot":
        return _dot(computation, instruction)
    return 0.0


def _dot(computation: Computation, instruction: Instruction) -> float:
    (left,) = computation.shapes_of(instruction.operands[0])
    contracted = [int(dim) for dim in instruction.list_attribute("lhs_contracting_dims")]
    depth = math.prod(left.dims[dim] for dim in contracted)
    return 2.0 * instruction.shapes[0].elements * depth


def _convolution(computation: Computation, instruction: Instruction) -> float:
    (left,), (right,) = (computation.shapes_of(operand) for operand in instruction.operands[:2])
    image, _, rest = instruction.attribute("dim_labels").partition("_")
    kernel, _, output = rest.partition("->")
    positions = 1
    for number, window in enumerate(_windows(instruction)):
        digit = str(number)
        size = left.dims[image.index(digit)]
        results = instruction.shapes[0].dims[output.index(digit)]
        positions *= window.positions(size, results)
    batch = left.dims[image.index("b")] // int(instruction.attribute("batch_group_count") or 1)
    features = right.dims[kernel.index("i")] * right.dims[kernel.index("o")]
    return 2.0 * batch * features * positions


class _Window:
    """A convolution's window in one dimension."""

    def __init__(self, fields: dict[str, str], number: int) -> None:
        def field(name: str, default: str) -> str:
            values = fields.get(name, "").split("x")
            return values[number] if values != [""] else default

        self._size = int(field("size", "1"))
        self._stride = int(field("stride", "1"))
        self._low = int(field("pad", "0_0").split("_")[0])
        self._image_dilation = int(field("lhs_dilate", "1"))
        self._dilation = int(field("rhs_dilate", "1"))

    def positions(self, size: int, results: int) -> int:
        """Return how many pairs of a window's element and a result meet an element of the image."""
        starts = range(-self._low, results * self._stride - self._low, self._stride)
        last = (size - 1) * self._image_dilation
        return sum(
            _multiples(start, last, self._size, self._dilation, self._image_dilation)
            for start in starts
        )


def _multiples(start: int, last: int, size: int, dilation: int, image_dilation: int) -> int:
    """Count the window's elements that meet elements of the image, which dilation sets apart.

    Element k lies at start + k * dilation, elements of the image at multiples of their dilation up
    to `last`. A matrix product for each example has windows as long as the batch.
    """
    common = math.gcd(dilation, image_dilation)
    if start % common:
        return 0
    period = image_dilation // common
    meeting = -start // common * pow(dilation // common, -1, period)
    least = max(0, -(start // dilation))
    first = least + (meeting - least) % period
    most = min(size - 1, (last - start) // dilation)
    return max(0, (most - first) // period + 1)


def _windows(instruction: Instruction) -> list[_Window]:
    found = re.search(r"\bwindow=\{([^{}]*)\}", instruction.attributes)
    fields = dict(part.split("=") for part in found[1].split()) if found else {}
    dimensions = len(fields["size"].split("x")) if "size" in fields else 0
    return [_Window(fields, number) for number in range(dimensions)]
