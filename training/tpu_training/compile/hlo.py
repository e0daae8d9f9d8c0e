"""A module of optimized HLO from its text: instructions, and where they come from.

The grammar is that of XLA's HloModule::ToString, as far as libtpu's dumps use it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

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
