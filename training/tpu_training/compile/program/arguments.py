"""Say what each parameter of a program is for."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import tensorflow as tf

from tpu_training.compile.program.steps import Step
from tpu_training.compile.result import Argument, ArgumentKind
from tpu_training.loop.optimizers import Optimizer
from tpu_training.models.names import variable_paths


class _Input(NamedTuple):
    """An input of a traced function: one of its arguments or a variable."""

    name: str
    kind: ArgumentKind
    shape: tuple[int, ...]
    dtype: tf.DType


def arguments_of(step: Step, module: Any) -> tuple[Argument, ...]:
    """Return the parameters of the HloModuleProto `module`, which was made from `step`."""
    left = _inputs(step)
    return tuple(_match(shape, left) for shape in module.host_program_shape.parameters)


def _match(shape: Any, left: Iterator[_Input]) -> Argument:
    """Take the next input of this shape: constants among them have become part of the program."""
    sizes = tuple(shape.dimensions)
    for name, kind, its, dtype in left:
        if its == sizes:
            return Argument(name, kind, prod(sizes) * dtype.size)
    return Argument("", "other", 0)


def _inputs(step: Step) -> Iterator[_Input]:
    for spec in step.specs:
        kind: ArgumentKind = "input" if spec.shape.rank else "other"
        yield _Input(spec.name, kind, tuple(spec.shape), spec.dtype)
    variables = {id(variable.handle): variable for variable in step.concrete.variables}
    names, kinds = _names(step), _kinds(step)
    for captured in step.concrete.captured_inputs:
        variable = variables.get(id(captured))
        if variable is None:
            yield _Input("a constant", "other", tuple(captured.shape), captured.dtype)
            continue
        name = names.get(id(variable), variable.name.partition(":")[0])
        kind = kinds.get(id(variable), "statistics")
        yield _Input(name, kind, tuple(variable.shape), variable.dtype)


def _kinds(step: Step) -> Mapping[int, ArgumentKind]:
    # An optimizer knows the weights that it changes, too.
    return {
        **{id(variable): "optimizer" for variable in step.state.optimizer.variables},
        **{id(variable): "weights" for variable in step.state.model.trainable_variables},
        **{id(shadow): "optimizer" for shadow in _shadows(step).values()},
        id(step.state.step): "other",
    }


def _names(step: Step) -> dict[int, str]:
    names = {id(variable): path for path, variable in variable_paths(step.state.model)}
    optimizer: Optimizer = step.state.optimizer
    for variable, slots in zip(step.state.variables, optimizer.slots, strict=True):
        of = names.get(id(variable), variable.name)
        for slot in slots:
            names[id(slot)] = f"{slot.name.partition(':')[0]} of {of}"
    for path, shadow in _shadows(step).items():
        names[id(shadow)] = f"average of {path}"
    return names


def _shadows(step: Step) -> Mapping[str, tf.Variable]:
    return step.state.average.shadows if step.state.average else {}
