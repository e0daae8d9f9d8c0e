"""Which instructions of a module run, and how often."""

import re
from collections.abc import Iterator

from tpu_training.compile.libtpu.hlo.module import Computation, Instruction, Module, Operand

# As far as the compiler knows and says it, which depends on its version.
_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def executed(module: Module) -> Iterator[tuple[Computation, Instruction, int]]:
    """Yield each instruction that runs, with its computation and how often it does.

    What fusions do inside is not included. Loops whose count nobody knows run once, and of a
    conditional the shortest branch does: what is counted so is a lower bound.
    """
    yield from _run(module, module.entry, 1)


def _run(
    module: Module, computation: Computation, times: int
) -> Iterator[tuple[Computation, Instruction, int]]:
    for instruction in computation.instructions.values():
        yield computation, instruction, times
        if instruction.opcode == "while":
            count = trip_count(module, computation, instruction) or 1
            for called in module.called(instruction, "body"):
                yield from _run(module, called, times * count)
        elif instruction.opcode == "conditional":
            if branches := _branches(module, instruction):
                shortest = min(branches, key=lambda branch: len(branch.instructions))
                yield from _run(module, shortest, times)
        elif instruction.opcode in ("call", "async-start"):
            for attribute in ("to_apply", "calls"):
                for called in module.called(instruction, attribute):
                    yield from _run(module, called, times)


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
        end = _initial(computation, loop, limit)
    if counter is None or end is None:
        return None
    begin, step = _initial(computation, loop, counter), _step(body, counter)
    return None if begin is None or not step else max(0, -(-(end - begin) // step))


def _branches(module: Module, instruction: Instruction) -> list[Computation]:
    names = ("branch_computations", "true_computation", "false_computation")
    return [called for name in names for called in module.called(instruction, name)]


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


def _initial(computation: Computation, loop: Instruction, element: int) -> int | None:
    """Return the constant with which an element of a loop's state starts."""
    state = _source(computation, loop.operands[0])
    if state is None or state.opcode != "tuple" or element >= len(state.operands):
        return None
    return _constant(computation, state.operands[element])


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
    instruction = computation.instructions.get(operand.name)
    while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
        instruction = computation.instructions.get(instruction.operands[0].name)
    return instruction
