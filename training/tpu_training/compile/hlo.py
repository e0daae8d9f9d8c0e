"""A module of optimized HLO from its text: instructions, where they come from, what they cost.

The grammar is that of XLA's HloModule::ToString, as far as libtpu's dumps use it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

from tpu_training.compile.answer import Costs, Padding

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^ +(ROOT )?%?([\w.\-]+) = (.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)((?:#\d+)*)")
_OPCODE = re.compile(r" ?([\w\-]+)\(")
_NAMES = re.compile(r"%?([\w.\-]+)")


@dataclass(frozen=True)
class Operand:
    """A use of an instruction's result, or of the element `index` of its tuple."""

    name: str
    index: int | None


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes:
        shapes: The arrays of its result; several for a tuple.
        arguments: The text between its parentheses.
        attributes: The text behind them.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    arguments: str
    attributes: str

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The instructions whose results it takes."""
        return tuple(
            Operand(name, int(index.rpartition("#")[2]) if index else None)
            for name, index in _OPERAND.findall(self.arguments)
        )

    def attribute(self, name: str) -> str:
        """Return the value of a simple attribute such as `direction=LT`, or ""."""
        found = re.search(rf"\b{name}=([^,{{}} ]+)", self.attributes)
        return found[1] if found else ""

    def list_attribute(self, name: str) -> list[str]:
        """Return the elements of an attribute in braces, `calls={a, b}`, or of a single value."""
        found = re.search(rf"\b{name}=(?:\{{([^{{}}]*)\}}|([^,{{}} ]+))", self.attributes)
        return _NAMES.findall(found[1] or found[2] or "") if found else []

    def metadata(self, name: str) -> str:
        """Return a field of the metadata: op_name, source_file, source_line, stack_frame_id."""
        begin = self.attributes.find("metadata={")
        found = re.compile(rf'\b{name}=(?:"([^"]*)"|(\d+))').search(self.attributes, max(begin, 0))
        return (found[1] or found[2] or "") if found and begin >= 0 else ""


@dataclass(frozen=True)
class Computation:
    """A computation: instructions by name, in their order, and its result."""

    name: str
    instructions: Mapping[str, Instruction]
    root: Instruction

    def shapes_of(self, operand: Operand) -> tuple[Shape, ...]:
        """Return the arrays of an operand; none if it is of another computation."""
        instruction = self.instructions.get(operand.name)
        if instruction is None:
            return ()
        index = operand.index
        if index is None or index >= len(instruction.shapes):
            return instruction.shapes
        return (instruction.shapes[index],)


@dataclass(frozen=True)
class Module:
    """All computations by name, the one that runs first, and the header's text above them."""

    computations: Mapping[str, Computation]
    entry: Computation
    header: str

    def called(self, instruction: Instruction, attribute: str) -> list[Computation]:
        """Return the computations that an attribute names."""
        names = instruction.list_attribute(attribute)
        return [self.computations[name] for name in names if name in self.computations]


def parse_module(text: str) -> Module:
    """Parse the text of a module.

    Raises:
        ValueError: It has no entry computation.
    """
    computations: dict[str, Computation] = {}
    header, entry = "", ""
    name, body, root = "", dict[str, Instruction](), ""
    for line in text.splitlines():
        if start := _COMPUTATION.match(line):
            name, body, root = start[2], {}, ""
            entry = name if start[1] else entry
            header = header or text[: text.index(line)]
        elif line.startswith("}") and body:
            last = body[root] if root else list(body.values())[-1]
            computations[name] = Computation(name, body, last)
        elif name and (match := _INSTRUCTION.match(line)):
            body[match[2]] = _parse_instruction(match[2], _INDEX_COMMENT.sub("", match[3]))
            root = match[2] if match[1] else root
    if entry not in computations:
        raise ValueError("the text has no ENTRY computation")
    return Module(computations, computations[entry], header)


def _parse_instruction(name: str, text: str) -> Instruction:
    """Parse `SHAPE opcode(ARGUMENTS), ATTRIBUTES`."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    opcode = _OPCODE.match(text, end)
    if opcode is None:
        raise ValueError(f"no instruction: {text[:80]}")
    close = _closing(text, opcode.end() - 1)
    return Instruction(
        name, opcode[1], parse_shapes(text[:end]), text[opcode.end() : close - 1], text[close:]
    )


def _closing(text: str, start: int) -> int:
    """Return the position behind the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)


# --- Shapes: type[dimensions]{minor to major:T(tile)(tile within a tile)S(memory space)}. Dynamic
# dimensions are written <=N.
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<= ]*)\](?:\{([^{}]*)\})?")
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
# The comments that number a long tuple's elements.
_INDEX_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class Shape:
    """An array's shape.

    Attributes:
        text: As HLO writes it.
        bits: Of one element.
        dims: The logical dimensions.
        tiled: The same dimensions as memory has them, tiles included.
        space: 0 for HBM; others are on the chip (1 is VMEM).
    """

    text: str
    bits: int
    dims: tuple[int, ...]
    tiled: tuple[int, ...]
    rest: int
    space: int

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """The size without tiles."""
        return -(-self.elements * self.bits // 8)

    @property
    def tiled_bytes(self) -> int:
        """The size in memory."""
        return -(-math.prod(self.tiled) * self.rest * self.bits // 8)

    def padded_dims(self) -> list[tuple[int, int, float]]:
        """Return (size, size in memory, share of the padding) of each dimension that grows."""
        grown = [(d, t) for d, t in zip(self.dims, self.tiled, strict=True) if t > d > 0]
        total = sum(math.log(t / d) for d, t in grown) + math.log(self.rest)
        return [(d, t, math.log(t / d) / total) for d, t in grown]


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return the arrays of a shape, a tuple's in their order."""
    return tuple(_parse_array(*match.group(0, 1, 2, 3)) for match in _ARRAY.finditer(text))


@lru_cache(maxsize=4096)
def _parse_array(text: str, kind: str, dims: str, layout: str | None) -> Shape:
    sizes = tuple(int(size.strip(" <=")) for size in dims.split(",") if size.strip())
    order, _, properties = (layout or "").partition(":")
    minor_first = [int(dim) for dim in order.split(",") if dim.strip()]
    tiles = _TILES.search(properties)
    space = _SPACE.search(properties)
    tiled, rest = _tile(sizes, minor_first, tiles[1] if tiles else "")
    return Shape(text, _bits(kind), sizes, tiled, rest, int(space[1]) if space else 0)


def _tile(
    sizes: tuple[int, ...], minor_first: list[int], tiles: str
) -> tuple[tuple[int, ...], int]:
    """Return the dimensions filled up to whole tiles, and what a tile has beyond their number.

    Only the first tile makes an array longer: those within it change the order of elements.
    """
    padded, rest = list(sizes), 1
    first = tiles[1:].split(")")[0]
    tile = [1 if side == "*" else int(side) for side in first.split(",") if side]
    for position, side in enumerate(reversed(tile)):
        if position < len(minor_first):
            dim = minor_first[position]
            padded[dim] = -(-padded[dim] // side) * side
        else:
            rest *= side
    return tuple(padded), rest


def _bits(kind: str) -> int:
    """Return an element's size: pred takes a byte, tokens nothing, others say it in their name."""
    if kind == "pred":
        return 8
    digits = re.search(r"\d+", kind)
    return int(digits[0]) if digits else 0


# --- Origins.

# A framework's own files, as TensorFlow's framework/ops.py, which its HLO names for everything.
_OF_FRAMEWORK = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
# How MLIR's parser calls a text that it was given: libtpu reads it from memory.
_OWN_TEXT = "-"
# What TensorFlow calls all parameters.
_NOT_SAID = ("", "XLA_Args")
# Files, then (file, line) of locations, then (location, parent) of frames, by number.
_Tables: TypeAlias = tuple[dict[str, str], dict[str, tuple[str, str]], dict[str, tuple[str, str]]]
# How JAX writes lines since it has stack frames: four tables in the module's header.
_FILE = re.compile(r'^(\d+) "(.*)"$', re.M)
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+).*? line=(\d+)", re.M)
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", re.M)


@dataclass(frozen=True)
class Origins:
    """Finds where instructions come from.

    Attributes:
        arguments: The names of the entry computation's parameters.
        file: The name of the program's own file, to whose lines "-" belongs.
    """

    module: Module
    arguments: Sequence[str] = ()
    file: str = ""

    def of(self, name: str, index: int | None = None) -> tuple[str, str]:
        """Return (operation, "FILE:LINE") of the instruction `name`.

        With an index, those of an element of its tuple. Copies come from where their operands do.
        Either is "" where it is not known.
        """
        computation = self._homes.get(name)
        if computation is None:
            return "", ""
        known = self._part(computation, name, index) or self._first_known(computation, name)
        if known is None:
            return "", ""
        op = known.metadata("op_name")
        if op in _NOT_SAID and known.opcode == "parameter":
            number = int(known.arguments)
            return (self.arguments[number] if number < len(self.arguments) else ""), ""
        return op, self._line(known)

    @cached_property
    def _homes(self) -> Mapping[str, Computation]:
        """The computation of each instruction; names are unique in a module."""
        found = self.module.computations.values()
        return {name: computation for computation in found for name in computation.instructions}

    def _part(self, computation: Computation, name: str, index: int | None) -> Instruction | None:
        """Return the instruction inside a fusion that makes an element of its tuple."""
        for fused in self.module.called(computation.instructions[name], "calls"):
            root = fused.root
            if root.opcode == "tuple" and index is not None and index < len(root.operands):
                return self._first_known(fused, root.operands[index].name)
        return None

    def _first_known(self, computation: Computation, name: str) -> Instruction | None:
        """Return the first instruction, back from `name`, that says where it comes from.

        A fusion that does not say it comes from where its result does; at last it is a parameter.
        """
        instruction = computation.instructions.get(name)
        while instruction is not None:
            named = instruction.metadata("op_name") not in _NOT_SAID
            if named or instruction.metadata("source_file"):
                return instruction
            if instruction.opcode == "parameter" and computation is self.module.entry:
                return instruction
            for fused in self.module.called(instruction, "calls"):
                if known := self._first_known(fused, fused.root.name):
                    return known
            # Its first operand, as far as the computation has it.
            following = instruction.operands[0].name if instruction.operands else ""
            instruction = computation.instructions.get(following)
        return None

    def _line(self, instruction: Instruction) -> str:
        file, line = instruction.metadata("source_file"), instruction.metadata("source_line")
        if not file:
            file, line = self._frame(instruction.metadata("stack_frame_id"))
        file = self.file if file == _OWN_TEXT else file
        return "" if not file or _OF_FRAMEWORK.search(file) else f"{file}:{line}"

    @cached_property
    def _tables(self) -> _Tables:
        header = self.module.header
        names = header.partition("\nFileNames\n")[2].partition("\n\n")[0]
        locations = {number: (file, line) for number, file, line in _LOCATION.findall(header)}
        frames = {number: (location, parent) for number, location, parent in _FRAME.findall(header)}
        return dict(_FILE.findall(names)), locations, frames

    def _frame(self, number: str) -> tuple[str, str]:
        """Return (file, line) of the innermost frame that is not the framework's."""
        files, locations, frames = self._tables
        seen = set()
        while number in frames and number not in seen:
            seen.add(number)
            location, parent = frames[number]
            file, line = locations.get(location, ("", ""))
            name = files.get(file, "")
            if name and not _OF_FRAMEWORK.search(name):
                return name, line
            number = parent
        return "", ""


# --- What one step costs: operations, traffic, padding, collectives. Counted as XLA's own cost
# analysis does, but for the tiles of a TPU's memory, which make arrays longer, and for loops, whose
# bodies count as often as they run.

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
        if (cycles := _CYCLES.search(instruction.attributes))
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
