"""A module of HLO from its text: computations, instructions, and where they come from."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tpu_training.compile.libtpu.hlo.shapes import Shape, parse_shapes, without_comments

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^ +(ROOT )?%?([\w.\-]+) = (.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)((?:#\d+)*)")
_OPCODE = re.compile(r" ?([\w\-]+)\(")
_CALLED = re.compile(r"\b(?:calls|body|condition|to_apply|branch_computations|\w+_computation)=")
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

    def calls_others(self) -> bool:
        """Whether it names computations."""
        return bool(_CALLED.search(self.attributes))


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

    @cached_property
    def parameters(self) -> Mapping[int, Instruction]:
        """The parameters by number."""
        found = (i for i in self.instructions.values() if i.opcode == "parameter")
        return {int(i.arguments): i for i in found}


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
            body[match[2]] = _parse_instruction(match[2], without_comments(match[3]))
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
        name,
        opcode[1],
        parse_shapes(text[:end]),
        text[opcode.end() : close - 1],
        text[close:],
    )


def _closing(text: str, start: int) -> int:
    """Return the position behind the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)


def walk_back(computation: Computation, name: str) -> Iterator[Instruction]:
    """Yield an instruction and its first operands, as far as the computation has them."""
    instruction = computation.instructions.get(name)
    while instruction is not None:
        yield instruction
        following = instruction.operands[0].name if instruction.operands else ""
        instruction = computation.instructions.get(following)
