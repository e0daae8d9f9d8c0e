"""What one step of a program costs: operations, traffic, padding, collectives.

Counted as XLA's own cost analysis does, but for the tiles of a TPU's memory, which make arrays
longer, and for loops, whose bodies count as often as they run.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from tpu_training.compile.answer import Costs, Padding
from tpu_training.compile.hlo import Computation, Instruction, Module, Operand, Origins, Shape

_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)"
    r"(-start)?"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNKNOWN = 2**64 - 1  # libtpu 0.0.52 for four fusions of a layer of 8192 on v5p.
# Names that the compiler gives to what it computes again: rematerialization's copies.
_REMAT = re.compile(r"\.remat\d*(?=\.|$)")
_NO_WORK = ("get-tuple-element", "tuple", "bitcast", "parameter")
_CAUSES = 5


def count_costs(module: Module, origins: Origins) -> Costs:
    """Count operations, traffic, padding and collectives of one step.

    A cause of padding is a pair of sizes, such as 100 padded to 104: one change of the model, such
    as another batch size, mends it wherever it occurs.
    """
    flops, moved_bytes, padding, collective = 0.0, 0, 0, 0
    remat = set()
    causes: Counter[tuple[int, int]] = Counter()
    greatest: dict[tuple[int, int], tuple[float, str]] = {}
    for computation, instruction, times in executed(module):
        flops += times * flops_of(module, computation, instruction)
        for shape in moved(module, computation, instruction):
            moved_bytes += times * shape.tiled_bytes
            wasted = times * (shape.tiled_bytes - shape.bytes)
            padding += wasted
            for size, padded, share in shape.padded_dims() if wasted else ():
                causes[size, padded] += math.floor(wasted * share)
                known = greatest.get((size, padded), (0.0, ""))
                greatest[size, padded] = max(known, (wasted * share, instruction.name))
        if _COLLECTIVE.fullmatch(instruction.opcode):
            for operand in instruction.operands:
                collective += times * sum(one.bytes for one in computation.shapes_of(operand))
        if _REMAT.search(instruction.name) and instruction.opcode not in _NO_WORK:
            remat.add(instruction.name)
    named = tuple(
        Padding(*cause, wasted, *origins.of(greatest[cause][1]))
        for cause, wasted in causes.most_common(_CAUSES)
    )
    return Costs(flops, float(moved_bytes), float(padding), named, collective, len(remat))


def count_cycles(module: Module) -> int | None:
    """Return the sum of the cycles that the compiler estimates; None if it says none.

    Only the program after code generation has them.
    """
    found = [
        times * int(cycles[1])
        for _, instruction, times in executed(module)
        if (cycles := _CYCLES.search(instruction.attributes)) and int(cycles[1]) != _UNKNOWN
    ]
    return sum(found) if found else None


_BRANCHES = ("branch_computations", "true_computation", "false_computation")
# As far as the compiler knows and says it, which depends on its version.
_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def executed(
    module: Module, computation: Computation | None = None, times: int = 1
) -> Iterator[tuple[Computation, Instruction, int]]:
    """Yield each instruction that runs, with its computation and how often it does.

    Not the instructions inside fusions. A loop with an unknown count runs once, and of a
    conditional only the shortest branch: the result is a lower bound.
    """
    computation = computation or module.entry
    for instruction in computation.instructions.values():
        yield computation, instruction, times
        called, turns = [], times
        if instruction.opcode == "while":
            called = module.called(instruction, "body")
            turns *= trip_count(module, computation, instruction) or 1
        elif instruction.opcode == "conditional":
            branches = [one for name in _BRANCHES for one in module.called(instruction, name)]
            called = sorted(branches, key=lambda branch: len(branch.instructions))[:1]
        elif instruction.opcode in ("call", "async-start"):
            called = [one for n in ("to_apply", "calls") for one in module.called(instruction, n)]
        for one in called:
            yield from executed(module, one, turns)


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Return how often a loop's body runs, or None.

    If the compiler does not say it, the form tells it that TensorFlow's and JAX' loops have: a
    counter that starts at a constant, grows by a constant and ends below one.
    """
    if known := _KNOWN.search(loop.attributes):
        return int(known[1])
    condition = next(iter(module.called(loop, "condition")), None)
    body = next(iter(module.called(loop, "body")), None)
    if condition is None or body is None or condition.root.attribute("direction") != "LT":
        return None
    counter, limit = (_element(condition, operand) for operand in condition.root.operands[:2])
    end = _constant(condition, condition.root.operands[1])
    if end is None and limit is not None:
        end = _initial(module, computation, loop, limit)
    if counter is None or end is None:
        return None
    begin, step = _initial(module, computation, loop, counter), _step(body, counter)
    return None if begin is None or not step else max(0, -(-(end - begin) // step))


def _element(computation: Computation, operand: Operand) -> int | None:
    """Return which element of the computation's parameter an operand is."""
    instruction = _source(computation, operand)
    if instruction is None:
        return None
    if instruction.opcode == "parameter":
        return operand.index
    if instruction.opcode == "get-tuple-element":
        return int(instruction.attribute("index"))
    return None


def _initial(
    module: Module, computation: Computation, loop: Instruction, element: int
) -> int | None:
    """Return the number with which an element of a loop's state starts, or None.

    It is a constant, or the counter with which another loop ended: a gradient's loop takes as many
    turns as the loop it is of.
    """
    state = _source(computation, loop.operands[0])
    if state is None or state.opcode != "tuple" or element >= len(state.operands):
        return None
    start = _origin(computation, state.operands[element])
    other = computation.instructions.get(start.name)
    if other is None or other.opcode != "while" or start.index is None:
        return _constant(computation, start)
    first = _initial(module, computation, other, start.index)
    turns = trip_count(module, computation, other)
    body = next(iter(module.called(other, "body")), None)
    step = _step(body, start.index) if body else None
    return None if first is None or turns is None or step is None else first + turns * step


def _step(body: Computation, element: int) -> int | None:
    """Return the constant by which an element of a loop's state grows in each turn."""
    if body.root.opcode != "tuple" or element >= len(body.root.operands):
        return None
    grown = _source(body, body.root.operands[element])
    if grown is None or grown.opcode not in ("add", "fusion"):
        return None
    steps = [_constant(body, operand) for operand in grown.operands]
    return next((step for step in steps if step is not None), None)


def _constant(computation: Computation, operand: Operand) -> int | None:
    instruction = _source(computation, operand)
    if instruction is None or instruction.opcode != "constant":
        return None
    return int(instruction.arguments) if re.fullmatch(r"-?\d+", instruction.arguments) else None


def _source(computation: Computation, operand: Operand) -> Instruction | None:
    """Return the instruction that makes an operand's value, behind copies of it."""
    return computation.instructions.get(_origin(computation, operand).name)


def _origin(computation: Computation, operand: Operand) -> Operand:
    """Return the operand of the first copy of an operand's value."""
    instruction = computation.instructions.get(operand.name)
    while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
        operand = instruction.operands[0]
        instruction = computation.instructions.get(operand.name)
    return operand


# --- Operations of matrix multiplications and convolutions are counted from their shapes, as XLA's
# cost analysis does (xla/service/hlo_cost_analysis.cc): a multiplication and an addition are two,
# and positions of a window in the padding do not count.


def flops_of(module: Module, computation: Computation, instruction: Instruction) -> float:
    """Return the operations of an instruction; a fusion's are those inside it."""
    if instruction.opcode == "fusion":
        return sum(
            flops_of(module, fused, inner)
            for fused in module.called(instruction, "calls")
            for inner in fused.instructions.values()
            if inner.opcode in ("convolution", "dot", "fusion")
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
    found = re.search(r"\bwindow=\{([^{}]*)\}", instruction.attributes)
    window = dict(part.split("=") for part in found[1].split()) if found else {}
    positions = 1
    for number in range(len(window["size"].split("x")) if "size" in window else 0):
        digit = str(number)
        size = left.dims[image.index(digit)]
        results = instruction.shapes[0].dims[output.index(digit)]
        positions *= _positions(window, number, size, results)
    batch = left.dims[image.index("b")] // int(instruction.attribute("batch_group_count") or 1)
    features = right.dims[kernel.index("i")] * right.dims[kernel.index("o")]
    return 2.0 * batch * features * positions


def _positions(window: Mapping[str, str], number: int, size: int, results: int) -> int:
    """Return how many pairs of a window's element and a result meet an element of the image.

    `size` and `results` are those of the image and of the output in dimension `number`.
    """

    def field(name: str, default: str) -> str:
        return window[name].split("x")[number] if name in window else default

    stride, low = int(field("stride", "1")), int(field("pad", "0_0").split("_")[0])
    dilation, image_dilation = int(field("rhs_dilate", "1")), int(field("lhs_dilate", "1"))
    starts = range(-low, results * stride - low, stride)
    last = (size - 1) * image_dilation
    length = int(field("size", "1"))
    return sum(_multiples(start, last, length, dilation, image_dilation) for start in starts)


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


# --- Traffic is what instructions read from HBM, memory space 0, and write to it, in the tiles of
# the TPU's memory. Of slices it is the part that they take, also inside fusions, as XLA counts it.
HBM = 0
# These move no data, or what they run is counted itself.
_FREE = re.compile(
    "parameter|constant|tuple|get-tuple-element|bitcast|after-all|opt-barrier|add-dependency|"
    "partition-id|replica-id|domain|while|conditional|call|async-(start|update|done)"
)
_NAMES_MEMORY = ("AllocateBuffer", "ConcatBitcast")
_SLICES = ("slice", "dynamic-slice", "gather")


def moved(module: Module, computation: Computation, instruction: Instruction) -> list[Shape]:
    """Return the arrays in HBM that an instruction reads or writes, each time that it does."""
    only_named = instruction.attribute("custom_call_target").strip('"') in _NAMES_MEMORY
    if _FREE.fullmatch(instruction.opcode) or only_named:
        return []
    shapes = [*_reads(module, computation, instruction), *_writes(module, computation, instruction)]
    return [shape for shape in shapes if shape.space == HBM]


def _reads(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Shape]:
    if instruction.opcode.endswith("-done"):
        return
    fused = next(iter(module.called(instruction, "calls")), None)
    for number, operand in enumerate(instruction.operands):
        whole = computation.shapes_of(operand)
        if instruction.opcode == "fusion" and fused is not None:
            # A fusion that only slices an operand reads just those slices.
            parts = _parts(module, fused, number)
            yield from whole if parts is None else _in_space(parts, whole)
        elif number == 0 and instruction.opcode in _SLICES:
            yield from _in_space(instruction.shapes, whole)
        elif number or instruction.opcode != "dynamic-update-slice":
            yield from whole


def _writes(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Shape]:
    if instruction.opcode.endswith("-start"):
        return
    within, root = computation, instruction
    if fused := module.called(instruction, "calls"):
        within, root = fused[0], _behind_bitcasts(fused[0], fused[0].root)
    if root.opcode == "dynamic-update-slice":
        yield from _in_space(within.shapes_of(root.operands[1]), instruction.shapes)
    else:
        yield from instruction.shapes


def _parts(module: Module, fused: Computation, number: int) -> tuple[Shape, ...] | None:
    """Return the slices that a fusion takes of a parameter, in fusions inside it, too.

    None if anything takes the whole.
    """
    parameters = (i for i in fused.instructions.values() if i.opcode == "parameter")
    name = next((i.name for i in parameters if int(i.arguments) == number), "")
    users = list(_users(fused, name)) if name else []
    found: list[Shape] = []
    for user, name in users:
        for inner in module.called(user, "calls") if user.opcode == "fusion" else ():
            for place in (n for n, operand in enumerate(user.operands) if operand.name == name):
                parts = _parts(module, inner, place)
                if parts is None:
                    return None
                found += parts
        if user.opcode != "fusion" and not _takes_part(user, name):
            return None
        found += user.shapes if user.opcode in _SLICES else ()
    return tuple(found) if users else None


def _takes_part(user: Instruction, name: str) -> bool:
    """Whether an instruction takes only a part of the operand `name`, its first."""
    parts = (*_SLICES, "dynamic-update-slice")
    rest = [operand.name for operand in user.operands[1:]]
    return user.opcode in parts and user.operands[0].name == name and name not in rest


def _users(computation: Computation, name: str) -> Iterator[tuple[Instruction, str]]:
    """Yield the instructions that take a value, behind bitcasts, each with its operand's name."""
    for user in computation.instructions.values():
        if Operand(name, None) in user.operands:
            if user.opcode == "bitcast":
                yield from _users(computation, user.name)
            else:
                yield user, name


def _behind_bitcasts(computation: Computation, instruction: Instruction) -> Instruction:
    while instruction.opcode == "bitcast":
        source = computation.instructions.get(instruction.operands[0].name)
        if source is None:
            break
        instruction = source
    return instruction


def _in_space(parts: tuple[Shape, ...], whole: tuple[Shape, ...]) -> Iterator[Shape]:
    """Yield the parts if what they are part of is in HBM."""
    if any(shape.space == HBM for shape in whole):
        yield from (dataclasses.replace(part, space=HBM) for part in parts)
