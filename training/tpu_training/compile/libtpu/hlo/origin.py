"""Where an instruction comes from: the framework's operation and the line of the user's code."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from tpu_training.compile.libtpu.hlo.module import Computation, Instruction, Module, walk_back

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
        sources: "FILE:LINE" by operation name, for HLO that names none of the user's files.
        arguments: The names of the entry computation's parameters.
        file: The name of the program's own file, to whose lines "-" belongs.
    """

    module: Module
    sources: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    file: str = ""

    def of(self, name: str, index: int | None = None) -> tuple[str, str]:
        """Return (operation, "FILE:LINE") of the instruction `name`.

        With an index, those of an element of its tuple. Copies come from where their operands do.
        Either is "" where nobody knows.
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
        return op, self._line(known) or self.sources.get(op, "")

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
        for instruction in walk_back(computation, name):
            said = instruction.metadata("op_name") not in _NOT_SAID
            if said or instruction.metadata("source_file"):
                return instruction
            if instruction.opcode == "parameter" and computation is self.module.entry:
                return instruction
            for fused in self.module.called(instruction, "calls"):
                if known := self._first_known(fused, fused.root.name):
                    return known
        return None

    def _line(self, instruction: Instruction) -> str:
        file, line = instruction.metadata("source_file"), instruction.metadata("source_line")
        if not file:
            file, line = self._frame(instruction.metadata("stack_frame_id"))
        file = self.file if file == _OWN_TEXT else file
        return "" if not file or _OF_FRAMEWORK.search(file) else f"{file}:{line}"

    @cached_property
    def _tables(self) -> _Tables:
        return _read_tables(self.module.header)

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


def _read_tables(header: str) -> _Tables:
    """Return the header's files, locations and frames by number."""
    names = header.partition("\nFileNames\n")[2].partition("\n\n")[0]
    files = dict(_FILE.findall(names))
    locations = {number: (file, line) for number, file, line in _LOCATION.findall(header)}
    frames = {number: (location, parent) for number, location, parent in _FRAME.findall(header)}
    return files, locations, frames
