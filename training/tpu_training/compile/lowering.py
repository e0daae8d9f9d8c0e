"""A job's training and evaluation steps as programs for a TPU's compiler, and what a TPU refuses.

Each step is traced as one replica of a TPU runs it, and lowered to HLO by TensorFlow itself. What
can't be lowered is named with the line of the user's code that it comes from.
"""

from __future__ import annotations

import functools
import inspect
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.python.framework import kernels

import tpu_training
from tpu_training.cluster.cluster import Cluster
from tpu_training.compile.answer import Argument, ArgumentKind, Program
from tpu_training.data.manifest import Manifest
from tpu_training.errors import LoweringError, TrainingError
from tpu_training.loop.evaluation import create_replica_evaluation
from tpu_training.loop.graph import operations
from tpu_training.loop.state import TrainState, create_train_state
from tpu_training.loop.step import Replica, Tensors, create_replica_step, create_step_sums
from tpu_training.models.model import variable_paths
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition


def train_program(
    definition: ModelDefinition, params: Params, manifest: Manifest, replicas: int
) -> Program:
    """Return the training step of one of `replicas` cores.

    On TensorFlow 2.12, which can't compile a sum over cores, it is the step of one core alone, on
    its share of the batch: then the program's `replicas` is 1.

    Raises:
        LoweringError: With everything in the step that a TPU does not take.
        InputError: The batch does not divide, or the model refuses the data or the parameters.
    """
    share = params.part_batch_size(replicas) * params.gradient_accumulation
    state = _create_state(definition, params, manifest)
    sums = create_step_sums(state)
    summed = replicas if can_reduce() else 1

    def step(number: tf.Tensor, *batch: tf.Tensor) -> None:
        replica = Replica(number, replicas, lambda values: sum_over(summed, number, values))
        create_replica_step(params, state, sums, lambda: replica)(*batch)

    return _lower("train", step, summed, state, _batch(manifest, params, share))


def evaluation_program(
    definition: ModelDefinition, params: Params, manifest: Manifest, replicas: int
) -> Program:
    """Return the evaluation of one batch on one of `replicas` cores.

    Raises:
        LoweringError: With everything in the step that a TPU does not take.
        InputError: The batch does not divide, or the model refuses the data or the parameters.
    """
    share = params.replica_batch_size(replicas, "evaluation_batch_size")
    state = _create_state(definition, params, manifest)
    evaluate = create_replica_evaluation(params, state)

    def step(number: tf.Tensor, *batch: tf.Tensor) -> Sequence[tf.Tensor]:
        return evaluate(*batch)

    weights = tf.TensorSpec((share,), tf.float32, "weights")
    batch = (*_batch(manifest, params, share), weights)
    return _lower("evaluate", step, replicas, state, batch)


def _create_state(definition: ModelDefinition, params: Params, manifest: Manifest) -> TrainState:
    """Create the variables as on a TPU, in this process and without a strategy."""
    cluster = Cluster(tf.distribute.get_strategy(), "", None, has_tpu=True)
    return create_train_state(cluster, definition, params, manifest, manifest.steps(params))


def _batch(manifest: Manifest, params: Params, share: int) -> tuple[tf.TensorSpec, ...]:
    """Return features and labels of `share` examples."""
    spec = manifest.input_spec(params.image_size)
    return (
        tf.TensorSpec((share, *spec.shape), spec.dtype, "features"),
        tf.TensorSpec((share, *spec.target_shape), spec.target_dtype, "labels"),
    )


@dataclass(frozen=True)
class Step:
    """A traced step of one replica.

    Attributes:
        state: The variables that it reads and changes.
        concrete: The trace.
        specs: Its arguments: the replica's number, then its share of a batch.
    """

    state: TrainState
    concrete: Any
    specs: tuple[tf.TensorSpec, ...]


def _lower(
    name: Literal["train", "evaluate"],
    step: Callable[..., Any],
    replicas: int,
    state: TrainState,
    batch: Sequence[tf.TensorSpec],
) -> Program:
    """Return `step` as a program for a TPU's compiler.

    Raises:
        LoweringError: The step can't run on a TPU.
    """
    specs = (tf.TensorSpec((), tf.int32, "replica"), *batch)
    concrete, module = lowered(name, step, specs)
    sources = Sources(concrete.graph)
    use_default_generator(module)
    for computation in module.computations:
        for instruction in computation.instructions:
            # The user's line; TensorFlow 2.19 writes one of its own.
            file, _, line = sources.where(instruction.metadata.op_name).rpartition(":")
            instruction.metadata.source_file = file
            instruction.metadata.source_line = int(line or 0)
    arguments = arguments_of(Step(state, concrete, specs), module)
    return Program(name, module.SerializeToString(), "hlo", replicas, arguments)


def lowered(
    name: Literal["train", "evaluate"], step: Callable[..., Any], specs: Sequence[tf.TensorSpec]
) -> tuple[Any, Any]:
    """Return the trace of `step` for arguments like `specs`, and its HloModuleProto.

    Raises:
        LoweringError: The step can't run on a TPU.
    """
    function = tf.function(step, jit_compile=True, autograph=False)
    try:
        concrete = function.get_concrete_function(*specs)
    except TrainingError:
        raise
    except Exception as error:  # Whatever the user's code may raise.
        raise untraceable(name, error) from error
    try:
        hlo = hlo_of(function, specs)
    except ERRORS as error:
        raise not_lowered(name, concrete.graph, Sources(concrete.graph), error) from error
    return concrete, hlo_pb2.HloModuleProto.FromString(hlo)


# TensorFlow's errors of what it can't compile.
ERRORS = (tf.errors.OpError, ValueError, NotImplementedError)


def hlo_of(function: Any, specs: Sequence[tf.TensorSpec]) -> bytes:
    """Return the serialized HloModuleProto of a tf.function for arguments like `specs`.

    The CPU stands in for the TPU, whose kernels TensorFlow's packages lack; see `accepts`.
    """
    generate = function.experimental_get_compiler_ir(*specs)
    # TensorFlow has renamed the argument; the CPU is that of either.
    named = "platform_name" in inspect.signature(generate).parameters
    device = {"platform_name": "CPU"} if named else {"device_name": "/device:CPU:0"}
    hlo: bytes = generate(stage="hlo_serialized", **device)
    return hlo


# A TPU's own sum over replicas, CrossReplicaSum, has a kernel on TPUs only. The collectives that
# every TensorFlow has become the same all-reduce in HLO.


@functools.cache
def can_reduce() -> bool:
    """Return whether this TensorFlow can compile a sum over replicas.

    2.12 says: "CollectiveAssignGroupV2 is unsupported in the legacy TF2XLA bridge".
    """
    specs = [tf.TensorSpec((), dtype) for dtype in (tf.int32, tf.float32)]
    trial = tf.function(lambda number, value: sum_over(2, number, [value]), jit_compile=True)
    try:
        hlo_of(trial, specs)
    except ERRORS:
        return False
    return True


def sum_over(replicas: int, number: tf.Tensor, values: Tensors) -> Tensors:
    """Sum each of `values` over `replicas` replicas, of which this one is `number`."""
    if replicas == 1:
        return values
    group = tf.raw_ops.CollectiveAssignGroupV2(
        group_assignment=[list(range(replicas))], device_index=number, base_key=1
    )
    return [
        tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=group.group_size,
            group_key=group.group_key,
            instance_key=instance,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )
        for instance, value in enumerate(values)
    ]


# TensorFlow picks the generator of random numbers by the platform that it compiles for: Philox on
# CPUs, the platform's own on TPUs (tensorflow/compiler/tf2xla/kernels/random_ops_util.cc,
# `DefaultRngAlgForDeviceType`). Compiled for a TPU, Philox takes many times the work and memory.
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
        is_state = instruction.opcode == "get-tuple-element" and instruction.tuple_index == 0
        if is_state and instruction.operand_ids[0] in generators:
            instructions += _lengthened(instruction, numbers)
        instructions.append(instruction)
    del computation.instructions[:]
    computation.instructions.extend(instructions)
    return len(generators)


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


class _Input(NamedTuple):
    """An input of a traced function: one of its arguments or a variable."""

    name: str
    kind: ArgumentKind
    shape: tuple[int, ...]
    dtype: tf.DType


def arguments_of(step: Step, module: Any) -> tuple[Argument, ...]:
    """Return the parameters of the HloModuleProto `module`, which was made from `step`.

    They have the order of the step's inputs, but for constants, which have become part of the
    program: each parameter is the next input of its shape.
    """
    left, found = _inputs(step), []
    for shape in module.host_program_shape.parameters:
        sizes = tuple(shape.dimensions)
        kept = next((given for given in left if given.shape == sizes), None)
        if kept is None:
            found.append(Argument("", "other", 0))
        else:
            found.append(Argument(kept.name, kept.kind, prod(sizes) * kept.dtype.size))
    return tuple(found)


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
    """Return what variables are for, by id. An optimizer knows the weights that it changes, too."""
    return {
        **{id(variable): "optimizer" for variable in step.state.optimizer.variables},
        **{id(variable): "weights" for variable in step.state.model.trainable_variables},
        **{id(shadow): "optimizer" for shadow in _shadows(step).values()},
        id(step.state.step): "other",
    }


def _names(step: Step) -> dict[int, str]:
    names = {id(variable): path for path, variable in variable_paths(step.state.model)}
    slots = step.state.optimizer.slots
    for variable, its in zip(step.state.variables, slots, strict=True):
        of = names.get(id(variable), variable.name)
        names |= {id(slot): f"{slot.name.partition(':')[0]} of {of}" for slot in its}
    return names | {id(shadow): f"average of {path}" for path, shadow in _shadows(step).items()}


def _shadows(step: Step) -> Mapping[str, tf.Variable]:
    return step.state.average.shadows if step.state.average else {}


# --- What of a step a TPU refuses, and the line of the user's code that it comes from.

_STEPS = {"train": "training step", "evaluate": "evaluation step"}
_CONSTANT = re.compile(
    r"Input (?P<input>\d+) to node `(?P<name>[^`]+)` with op (?P<type>\w+) must be a compile-time"
)
_NODE = re.compile(r"\{\{node (?P<name>[^}]+)\}\}")
# TensorFlow's documentation of automatic outside compilation:
# https://www.tensorflow.org/api_docs/python/tf/config/set_soft_device_placement
_CURE = (
    "replace it, or move it to the input pipeline; on a TPU, TensorFlow refuses the step, or "
    "returns to the host in each one"
)
_FIXED = "use a size that doesn't depend on the data"


class Refusal(NamedTuple):
    """Something that a TPU does not take: a sentence that begins with its place, and the cure."""

    text: str
    cure: str


def not_lowered(name: str, graph: tf.Graph, sources: Sources, error: Exception) -> LoweringError:
    """Return what to tell the user of TensorFlow's `error` on compiling the step called `name`."""
    found = _without_kernel(graph, sources)
    # Next to operations without a kernel, only this error is certainly a separate one.
    if not found or _CONSTANT.search(str(error)):
        found = [_explain(error, sources), *found]
    cures = "; ".join(dict.fromkeys(refusal.cure for refusal in found))
    listed = "; ".join(refusal.text for refusal in found)
    return LoweringError(f"the {_STEPS[name]} can't run on a TPU: {listed}; {cures}")


def untraceable(name: str, error: Exception) -> LoweringError:
    """Return what to tell the user of `error`, which the model raised on being traced."""
    reason = " ".join(str(error).split("\n")[-1].split()) or "no message"
    said = _placed(line_of_error(error), f"{type(error).__name__}: {reason}")
    return LoweringError(
        f"the {_STEPS[name]} can't become a graph: {said}; shapes and Python values must be known "
        "before the step runs"
    )


def _without_kernel(graph: tf.Graph, sources: Sources) -> list[Refusal]:
    """Return every operation of a step's `graph` that has no kernel for TPUs.

    Among them may be some that do no harm, as nothing needs their results.
    """
    found: dict[Refusal, None] = {}
    types: set[str] = set()
    for operation in operations(graph):
        # A gradient of the same type goes with its operation.
        known = operation.type in types and operation.name.startswith(_GRADIENT)
        # A graph's arguments are operations in name only.
        if known or operation.type == "Placeholder" or accepts(operation):
            continue
        types.add(operation.type)
        taken = ", ".join(sorted({tensor.dtype.name for tensor in operation.inputs}))
        takes = f" that takes {taken}" if _kernels(operation.type) else ""
        text = f"{operation.type} has no kernel for TPUs{takes}"
        found[Refusal(_placed(sources.where(operation.name), text), _CURE)] = None
    return list(found)


def _explain(error: Exception, sources: Sources) -> Refusal:
    text = str(error)
    if constant := _CONSTANT.search(text):
        needs = (
            f"needs its input {constant['input']} before the step runs, but the step computes it"
        )
        where = sources.where(constant["name"])
        return Refusal(_placed(where, f"{constant['type']} {needs}"), _FIXED)
    node = _NODE.search(text)
    where = sources.where(node["name"]) if node else ""
    reason = text.removeprefix("Failed getting HLO text: '").strip().split("\n")[0]
    return Refusal(_placed(where, reason), "change that line")


def _placed(where: str, text: str) -> str:
    return f"{where}: {text}" if where else text


_PACKAGE = Path(tpu_training.__file__).parent
_ADAPTER, _NETWORKS = (str(_PACKAGE / "models" / name) for name in ("keras.py", "networks.py"))
_HERE = str(Path(__file__).parent) + "/"
# Folders of libraries, and names in angle brackets, such as <string>.
_NOT_USERS = (
    "<",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platlib", "purelib")),
    *(f"{folder}/" for folder in site.getsitepackages()),
    f"{Path(tf.__file__).parent}/",
    f"{sys.prefix}/lib/",
)
# What AutoGraph makes of a user's function; the user's own frame comes next in the stack.
_GENERATED = "__autograph_generated_file"
_GRADIENT = "gradient_tape/"


class Sources:
    """The lines of code of a graph's operations, by the operations' names."""

    def __init__(self, graph: tf.Graph) -> None:
        """Look at `graph` and all functions in it."""
        self._operations = {operation.name: operation for operation in operations(graph)}
        self._known: dict[str, str] = {}

    def where(self, name: str) -> str:
        """Return "FILE:LINE" of the operation called `name`; "" where it is not known.

        For the gradient of an operation it is the line of the operation itself.
        """
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> str:
        operation = self._operations.get(name)
        if name.startswith(_GRADIENT):
            operation = self._forward(name, operation) or operation
        while operation is None and "/" in name:
            # The compiler appends the names of what it made of an operation.
            name = name.rpartition("/")[0]
            operation = self._operations.get(name)
        return line_of(operation) if operation else ""

    def _forward(self, name: str, gradient: tf.Operation | None) -> tf.Operation | None:
        """Return the operation of which `gradient` is the gradient.

        The name of a gradient begins with the name scope of its operation. Where that had none, the
        two have inputs in common and related types: Conv2D, Conv2DBackpropFilter.
        """
        scope = name.removeprefix(_GRADIENT).rpartition("/")[0]
        while scope and scope not in self._operations and scope not in self._scopes:
            scope = scope.rpartition("/")[0]
        found = self._operations.get(scope) or self._scopes.get(scope)
        if found and found.type not in ("While", "StatelessWhile", "If", "StatelessIf"):
            return found
        related = _related(gradient) if gradient else []
        return max(related, key=lambda operation: len(operation.type), default=None)

    @cached_property
    def _scopes(self) -> dict[str, tf.Operation]:
        """The first operation of each name scope."""
        scopes: dict[str, tf.Operation] = {}
        for name, operation in self._operations.items():
            scope = name.rpartition("/")[0]
            if scope and not name.startswith(_GRADIENT):
                scopes.setdefault(scope, operation)
        return scopes


def _related(gradient: tf.Operation) -> list[tf.Operation]:
    near = [other for tensor in gradient.inputs for other in (tensor.op, *tensor.consumers())]
    return [
        other
        for other in near
        if not other.name.startswith(_GRADIENT)
        and other.type != gradient.type
        and gradient.type.startswith(other.type.removesuffix("V2").removesuffix("V3"))
    ]


def line_of(operation: tf.Operation) -> str:
    """Return "FILE:LINE" of the code that made `operation`; "" where it is not known.

    It is the innermost line of the user's own files; for a built-in model, that of the model.
    """
    return _innermost([(frame.filename, frame.lineno) for frame in operation.traceback or ()])


def line_of_error(error: BaseException) -> str:
    """Return "FILE:LINE" of the code that raised `error` while a step was traced, or ""."""
    # AutoGraph translates the lines of its generated files, innermost first.
    metadata = getattr(error, "ag_error_metadata", None)
    if stack := getattr(metadata, "translated_stack", ()):
        own = [(frame.filename, frame.lineno) for frame in reversed(stack)]
        if line := _innermost(own):
            return line
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost([(frame.filename, frame.lineno or 0) for frame in frames])


def _innermost(frames: Sequence[tuple[str, int]]) -> str:
    tracing = [index for index, (file, _) in enumerate(frames) if file.startswith(_HERE)]
    # What called the tracing is not part of the step.
    inner = [frame for frame in frames[min(tracing, default=0) :] if _HERE not in frame[0]]
    package = [frame for frame in inner if frame[0].startswith(f"{_PACKAGE}/")]
    users = [
        frame
        for frame in inner
        if frame not in package
        and not frame[0].startswith(_NOT_USERS)
        and _GENERATED not in frame[0]
    ]
    networks = [frame for frame in package if frame[0] == _NETWORKS]
    if not users and any(file == _ADAPTER for file, _ in package):
        return ""  # A Keras layer, whose name says more than the line that calls all of them.
    for found in (users, networks, package):
        if found:
            return f"{_shown(found[-1][0])}:{found[-1][1]}"
    return ""


def _shown(file: str) -> str:
    """Shorten the path of a file of this package, or below the current directory."""
    for folder in (_PACKAGE.parent, Path.cwd()):
        if file.startswith(f"{folder}/"):
            return file.removeprefix(f"{folder}/")
    return file


# TensorFlow's packages have no kernels for TPUs: those come with the TPU's own library. The kernels
# for XLA on CPUs stand in for them; both are generated from the same source,
# tensorflow/compiler/tf2xla/kernels.
_DEVICE = "XLA_CPU_JIT"


@functools.cache
def _kernels(operation_type: str) -> tuple[Any, ...]:
    registered = kernels.get_registered_kernels_for_op(operation_type).kernel
    return tuple(kernel for kernel in registered if kernel.device_type == _DEVICE)


def accepts(operation: tf.Operation) -> bool:
    """Return whether XLA can compile this operation with its types of numbers."""
    return any(_fits(kernel, operation) for kernel in _kernels(operation.type))


def _fits(kernel: Any, operation: tf.Operation) -> bool:
    attributes = operation.node_def.attr
    return all(
        attributes[constraint.name].type in constraint.allowed_values.list.type
        for constraint in kernel.constraint
        if constraint.allowed_values.list.type and attributes[constraint.name].type
    )
