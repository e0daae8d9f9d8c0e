"""Let a program draw random numbers as a TPU does.

TensorFlow picks the algorithm by the platform it compiles for: Philox on CPUs, the platform's own
on TPUs (tensorflow/compiler/tf2xla/kernels/random_ops_util.cc, `DefaultRngAlgForDeviceType`).
Compiled for a TPU, Philox takes many times the work and memory of the TPU's generator.
"""

from typing import Any

_OPCODE = "rng-bit-generator"
# Of xla_data.proto's RandomAlgorithm; Philox' state has one word more than the default's.
_DEFAULT, _PHILOX = 0, 2
_PHILOX_WORDS, _DEFAULT_WORDS = 3, 2


def use_default_generator(module: Any) -> int:
    """Replace Philox in an HloModuleProto by the platform's generator; return how many."""
    numbers = _Numbers(module)
    return sum(_repair(computation, numbers) for computation in module.computations)


class _Numbers:
    """Numbers for new instructions, unique in their module.

    Later versions have the computation's number in the upper half.
    """

    def __init__(self, module: Any) -> None:
        self._last: dict[int, int] = {}
        for computation in module.computations:
            for instruction in computation.instructions:
                half = instruction.id >> 32
                self._last[half] = max(self._last.get(half, 0), instruction.id)

    def like(self, number: int) -> int:
        """Return a new number for the computation of instruction `number`."""
        self._last[number >> 32] += 1
        return self._last[number >> 32]


def _repair(computation: Any, numbers: _Numbers) -> int:
    instructions = []
    generators = set()
    by_id = {instruction.id: instruction for instruction in computation.instructions}
    for instruction in computation.instructions:
        if instruction.opcode == _OPCODE and instruction.rng_algorithm == _PHILOX:
            state = by_id[instruction.operand_ids[0]]
            instructions.append(_shortened(state, _DEFAULT_WORDS, numbers))
            instruction.operand_ids[0] = instructions[-1].id
            instruction.rng_algorithm = _DEFAULT
            instruction.shape.tuple_shapes[0].dimensions[0] = _DEFAULT_WORDS
            generators.add(instruction.id)
        if _is_new_state(instruction, generators):
            instructions += _lengthened(instruction, numbers)
        instructions.append(instruction)
    del computation.instructions[:]
    computation.instructions.extend(instructions)
    return len(generators)


def _is_new_state(instruction: Any, generators: set[int]) -> bool:
    return (
        instruction.opcode == "get-tuple-element"
        and instruction.tuple_index == 0
        and instruction.operand_ids[0] in generators
    )


def _shortened(words: Any, count: int, numbers: _Numbers) -> Any:
    """Return a slice of the first `count` words of the instruction `words`."""
    number = numbers.like(words.id)
    short = type(words)(id=number, name=f"slice.{number}", opcode="slice")
    short.operand_ids.append(words.id)
    short.shape.CopyFrom(words.shape)
    short.shape.dimensions[0] = count
    short.slice_dimensions.add(start=0, limit=count, stride=1)
    return short


def _lengthened(state: Any, numbers: _Numbers) -> list[Any]:
    """Make the new `state` as long as Philox' again; return the instructions it is made of."""
    element = type(state)()
    element.CopyFrom(state)
    element.id = numbers.like(state.id)
    element.name = f"get-tuple-element.{element.id}"
    element.shape.dimensions[0] = _DEFAULT_WORDS
    rest = _shortened(element, _PHILOX_WORDS - _DEFAULT_WORDS, numbers)
    state.opcode = "concatenate"
    state.tuple_index = 0
    state.dimensions.append(0)
    state.operand_ids[:] = [element.id, rest.id]
    return [element, rest]
