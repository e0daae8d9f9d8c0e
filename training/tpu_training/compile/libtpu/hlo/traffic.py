"""What instructions read from HBM and write to it.

Operands and results in memory space 0, in the tiles of the TPU's memory; of slices the part that
they take, also inside fusions, as XLA's cost analysis does (hlo_cost_analysis.cc).
"""

import dataclasses
import re
from collections.abc import Iterator

from tpu_training.compile.libtpu.hlo.module import Computation, Instruction, Module, Operand
from tpu_training.compile.libtpu.hlo.shapes import Shape

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
    if _FREE.fullmatch(instruction.opcode) or _moves_nothing(instruction):
        return []
    shapes = [*_reads(module, computation, instruction), *_writes(module, computation, instruction)]
    return [shape for shape in shapes if shape.space == HBM]


def _moves_nothing(instruction: Instruction) -> bool:
    """Whether it only gives memory a name."""
    return instruction.attribute("custom_call_target").strip('"') in _NAMES_MEMORY


def _reads(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Shape]:
    if instruction.opcode.endswith("-done"):
        return
    fused = next(iter(module.called(instruction, "calls")), None)
    for number, operand in enumerate(instruction.operands):
        whole = computation.shapes_of(operand)
        if instruction.opcode == "fusion" and fused is not None:
            yield from _read_inside(module, fused, number, whole)
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


def _read_inside(
    module: Module, fused: Computation, number: int, whole: tuple[Shape, ...]
) -> Iterator[Shape]:
    """Return what a fusion reads of an operand: the slices, if it takes nothing but slices."""
    parts = _parts(module, fused, number)
    yield from whole if parts is None else _in_space(parts, whole)


def _parts(module: Module, fused: Computation, number: int) -> tuple[Shape, ...] | None:
    """Return the slices that a fusion takes of a parameter, in fusions inside it, too.

    None if anything takes the whole.
    """
    parameter = fused.parameters.get(number)
    users = list(_users(fused, parameter.name)) if parameter else []
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
    """Yield the parts if what they are part of lies in HBM."""
    if any(shape.space == HBM for shape in whole):
        yield from (dataclasses.replace(part, space=HBM) for part in parts)
