"""Run a job's steps on JAX's devices: the same steps, as TensorFlow lowers them to HLO.

JAX compiles one program for all devices: a loop of steps, which takes variables and a batch for
each step, and returns the variables. It runs any number of steps, so the results don't depend on
how many a call has.
The loops have the forms of those in loop/train.py and loop/evaluation.py.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.jax_devices import AXIS, JaxCluster, put
from tpu_training.compile import lowering
from tpu_training.data import data_set, pipeline
from tpu_training.errors import InputError, TrainingError
from tpu_training.loop.evaluation import EvaluationLoop, create_replica_evaluation
from tpu_training.loop.state import ModelState, TrainState
from tpu_training.loop.step import Replica, create_replica_step, create_step_sums
from tpu_training.models.keras import KerasModule
from tpu_training.models.params import Params

# How many calls the host may be ahead of the devices: each holds its batches.
_AHEAD = 2
# A call has at most so many steps, so many bytes of batches, and this part of a loop's steps: long
# steps are called one by one, while the host reads the next batch.
_MOST_STEPS, _MOST_BYTES, _SHARE = 32, 8 << 20, 8


class TrainLoop:
    """Does a given number of training steps; see loop/train.py."""

    def __init__(
        self,
        cluster: JaxCluster,
        params: Params,
        state: TrainState,
        data: data_set.DataSet,
        first_step: int,
    ) -> None:
        """Compile the step; its first batch is that of `first_step`.

        Raises:
            InputError: This TensorFlow, or the model, can't sum over JAX's devices.
            LoweringError: With everything in the step that XLA does not take.
        """
        if cluster.replicas > 1:
            _refuse_synchronized(state.model)
            if not lowering.can_reduce():
                raise InputError(
                    f"--backend=jax: TensorFlow {tf.__version__} can't lower a sum over "
                    f"{cluster.replicas} devices; install 2.13 or later"
                )
        sums = create_step_sums(state)

        def step(number: tf.Tensor, *batch: Any) -> None:
            def sum_all(values: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
                return lowering.sum_over(cluster.replicas, number, values)

            replica = Replica(number, cluster.replicas, sum_all)
            create_replica_step(params, state, sums, lambda: replica)(*batch)

        rows = pipeline.training_rows(data, params, first_step, cluster.processes, cluster.process)
        self._batches = iter(pipeline.finish(rows, params))
        share = params.replica_batch_size(cluster.replicas)
        batch = _share(self._batches.element_spec, share)
        self._program = _Program(cluster, "train", step, batch, sums)
        self._cluster, self._state, self._step = cluster, state, first_step

    def get_concrete_function(self, *_: Any) -> SimpleNamespace:
        """Return the trace of one replica's step, of which operations are counted."""
        return SimpleNamespace(graph=self._program.graph)

    def __call__(self, count: tf.Tensor) -> tf.Tensor:
        """Do `count` steps; return the fields of LoopFigures."""
        with self._cluster.memory.in_use:
            return self._steps(int(count))

    def _steps(self, count: int) -> tf.Tensor:
        waited, sums = 0.0, self._program.zeros()
        running: deque[Any] = deque()
        for steps in calls(count, self._program.most):
            begun = time.monotonic()
            batches = [next(self._batches) for _ in range(steps)]
            waited += time.monotonic() - begun
            sums, _, mark = self._program(batches, sums)
            _follow(running, mark)
        self._step += count
        # Captured in their order: the numbers, then the counts.
        totals = [
            _of_all(self._cluster, _rows(each).sum(axis=0, dtype=np.float64)) for each in sums
        ]
        rate = self._state.optimizer.rate(tf.constant(self._step - 1, tf.int64))
        first = [float(rate), waited, len(self._state.variables)]
        return tf.constant(np.concatenate([first, *totals]))


def create_evaluation_loop(
    cluster: JaxCluster, params: Params, state: ModelState, data: data_set.DataSet, split: str
) -> tuple[EvaluationLoop, int]:
    """Return what sums up a number of batches of `split`, and how many an evaluation has.

    Raises:
        LoweringError: With everything in the evaluation that XLA does not take.
    """
    evaluate = create_replica_evaluation(params, state)
    rows = pipeline.repeated_rows(data, params, cluster.processes, cluster.process, split)
    batches = iter(pipeline.finish(rows, params))
    share = params.replica_batch_size(cluster.replicas, "evaluation_batch_size")
    batch = _share(batches.element_spec, share)
    program = _Program(cluster, "evaluate", lambda number, *parts: evaluate(*parts), batch)

    def loop(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        results: list[Any] = []
        running: deque[Any] = deque()
        for steps in calls(int(count), program.most):
            _, result, mark = program([next(batches) for _ in range(steps)], [])
            results.append(result)
            _follow(running, mark)
        # (replicas, steps, …); behind the last step of a call is 0.
        numbers, counts = (
            _of_all(cluster, np.concatenate([_rows(each) for each in parts], 1).sum(axis=(0, 1)))
            for parts in zip(*results, strict=True)
        )
        return tf.constant(numbers), tf.constant(counts)

    return loop, pipeline.evaluation_steps(data, params, split)


def most_steps(size: int) -> int:
    """Return how many steps a call may have, whose batches have `size` bytes each.

    It doesn't depend on the number of hosts: with another one, XLA may round otherwise.
    """
    return min(_MOST_STEPS, max(1, _MOST_BYTES // max(size, 1)))


def calls(count: int, most: int) -> Iterator[int]:
    """Yield how many steps each call has, at most `most`, of `count` steps together."""
    most = min(most, max(1, count // _SHARE))
    for begin in range(0, count, most):
        yield min(most, count - begin)


def _refuse_synchronized(model: tf.Module) -> None:
    """Raise InputError for layers of Keras that sum over the devices by themselves."""
    layers = model.keras()._flatten_layers() if isinstance(model, KerasModule) else ()
    if names := [each.name for each in layers if getattr(each, "synchronized", False)]:
        raise InputError(
            f"--backend=jax: {', '.join(names)}: with synchronized=True a layer of Keras asks "
            "TensorFlow for the other devices; set it to False, or train on TensorFlow"
        )


def _refuse_sums(written: Sequence[tf.Variable]) -> None:
    """Raise InputError for variables that a strategy would add up: each device keeps its own."""
    kinds = (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)
    if names := [each.name for each in written if each.aggregation in kinds]:
        raise InputError(
            f"--backend=jax: the step writes {', '.join(names)}, whose values TensorFlow adds up "
            "over the devices; add them up with context.sum"
        )


def _rows(sums: Any) -> npt.NDArray[Any]:
    """Return what this host's replicas have in a row each."""
    parts = [np.asarray(shard.data) for shard in sums.addressable_shards]
    return np.concatenate(parts)


def _of_all(cluster: JaxCluster, sums: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sums over all hosts of those of this one."""
    total: npt.NDArray[Any] = cluster.gather(sums).sum(axis=0)
    return total


def _share(batch: Any, examples: int) -> Any:
    """Return the specs of a replica's `examples` of a batch with these specs."""
    return tf.nest.map_structure(
        lambda spec: tf.TensorSpec((examples, *spec.shape[1:]), spec.dtype), batch
    )


def _follow(running: deque[Any], mark: Any) -> None:
    """Wait until the devices are at most `_AHEAD` steps behind the one that gave `mark`."""
    running.append(mark)
    if len(running) > _AHEAD:
        running.popleft().block_until_ready()


class _Program:
    """A loop of a replica's steps as a program of JAX's devices.

    Attributes:
        graph: The trace of the step.
        most: How many steps a call may have.
    """

    def __init__(
        self,
        cluster: JaxCluster,
        name: Literal["train", "evaluate"],
        step: Callable[..., Any],
        batch: Any,
        sums: Sequence[tf.Variable] = (),
    ) -> None:
        """Lower `step`, which takes the replica's number and its share of a batch, of these specs.

        In each of `sums` a replica adds up its own.
        """
        self._cluster = cluster
        specs = [tf.TensorSpec((), tf.int32, "replica"), *tf.nest.flatten(batch)]

        def flat_step(number: tf.Tensor, *parts: tf.Tensor) -> Any:
            return step(number, *tf.nest.pack_sequence_as(batch, parts))

        concrete, module = lowering.lowered(name, flat_step, specs)
        if cluster.has_tpu:
            lowering.use_default_generator(module)
        _make_portable(module)
        self.graph = concrete.graph
        # XLA's parameters are the arguments and what the step captures, in that order. It names
        # those of its outputs that are the new values of variables.
        parameters, captured = module.host_program_shape.parameters, concrete.captured_inputs
        if len(parameters) != len(specs) + len(captured):
            raise TrainingError(
                f"--backend=jax: the {name} step has {len(specs) + len(captured)} inputs, of which "
                f"TensorFlow {tf.__version__} keeps {len(parameters)}; which ones isn't known"
            )
        handles = {id(variable.handle): variable for variable in concrete.variables}
        places = dict(enumerate(captured, start=len(specs)))
        self._variables = {
            at: handles[id(each)] for at, each in places.items() if id(each) in handles
        }
        everywhere = cluster.sharding()
        self._constants = {
            at: put(each.numpy(), everywhere)
            for at, each in places.items()
            if at not in self._variables
        }
        outputs = {
            entry.parameter_number: entry.output_shape_index[0]
            for entry in module.input_output_alias.entries
        }
        own = {id(each) for each in sums}
        self._sums = [at for at, each in self._variables.items() if id(each) in own]
        self._changed = [at for at in self._variables if at in outputs and at not in self._sums]
        self._kept = [at for at in self._variables if at not in outputs]
        self._outputs = outputs
        written = [self._variables[at] for _, at in sorted((to, at) for at, to in outputs.items())]
        if cluster.replicas > 1:
            _refuse_sums([self._variables[at] for at in self._changed])
        shapes = tuple(
            (tuple(each.shape), each.dtype.as_numpy_dtype) for each in (*concrete.outputs, *written)
        )
        self._results = len(concrete.outputs)
        size = sum(each.shape.num_elements() * each.dtype.size for each in specs[1:])
        self.most = most_steps(size * cluster.replicas)
        self._run = self._compiled(module.SerializeToString(), shapes, specs[1:])

    def zeros(self) -> list[Any]:
        """Return the sums before the first step: a row for each replica."""
        rows = self._cluster.replicas // self._cluster.processes
        return [
            put(
                np.zeros((rows, *each.shape), each.dtype.as_numpy_dtype),
                self._cluster.sharding(AXIS),
            )
            for each in (self._variables[at] for at in self._sums)
        ]

    def __call__(self, batches: Sequence[Any], sums: list[Any]) -> tuple[list[Any], list[Any], Any]:
        """Start a step for each batch; return sums, results, and an array that is made with them.

        Sums and results have a row for each replica; in it a result has one for each step.
        """
        rows = self._cluster.sharding(None, AXIS)
        arrays = [
            put(self._stack(parts), rows)
            for parts in zip(*map(tf.nest.flatten, batches), strict=True)
        ]
        count = put(np.int32(len(batches)), self._cluster.sharding())
        memory, changed = self._cluster.memory, [self._variables[at] for at in self._changed]
        kept = memory.of([self._variables[at] for at in self._kept])
        new, sums, results, mark = self._run(
            memory.of(changed), sums, kept, count, arrays, self._constants
        )
        memory.changed(changed, new)
        return sums, results, mark

    def _stack(self, parts: Sequence[tf.Tensor]) -> npt.NDArray[Any]:
        """Return the same part of each batch, and zeros for the steps that a call lacks."""
        first = parts[0].numpy()
        if self.most == 1:
            stacked: npt.NDArray[Any] = first[np.newaxis]
            return stacked
        # Each call has its own: JAX may not copy it.
        stacked = np.zeros((self.most, *first.shape), first.dtype)
        for row, part in zip(stacked, parts, strict=False):
            row[...] = part.numpy()
        return stacked

    def _compiled(self, hlo: bytes, shapes: tuple[Any, ...], batch: Sequence[tf.TensorSpec]) -> Any:
        """Return the program of `hlo`, whose results and new variables have these `shapes`."""
        import jax
        from jax.sharding import PartitionSpec

        all_alike, each_its_own = PartitionSpec(), PartitionSpec(AXIS)
        mapped = jax.shard_map(
            self._loop(_stablehlo(hlo), shapes),
            mesh=self._cluster.mesh,
            in_specs=(
                *(all_alike, each_its_own, all_alike, all_alike),
                *(PartitionSpec(None, AXIS), all_alike),
            ),
            out_specs=(all_alike, each_its_own, each_its_own, each_its_own),
            check_vma=False,
        )
        replicas, everywhere = self._cluster.replicas, self._cluster.sharding()
        rows = self._cluster.sharding(AXIS)

        def of(places: Sequence[int]) -> list[Any]:
            return [(self._variables[at].shape, self._variables[at].dtype) for at in places]

        def like(kinds: Sequence[Any], sharding: Any) -> list[Any]:
            return [
                jax.ShapeDtypeStruct(tuple(shape), dtype.as_numpy_dtype, sharding=sharding)
                for shape, dtype in kinds
            ]

        given = (
            like(of(self._changed), everywhere),
            like([((replicas, *shape), dtype) for shape, dtype in of(self._sums)], rows),
            like(of(self._kept), everywhere),
            like([((), tf.int32)], everywhere)[0],
            like(
                [((self.most, replicas * s.shape[0], *s.shape[1:]), s.dtype) for s in batch],
                self._cluster.sharding(None, AXIS),
            ),
            self._constants,
        )
        # Now, so that a step that is too large for the devices' memory fails before the first one.
        made = (everywhere, rows, rows, rows)
        return jax.jit(mapped, out_shardings=made, donate_argnums=(0, 1)).lower(*given).compile()

    def _loop(self, code: bytes, shapes: tuple[Any, ...]) -> Callable[..., Any]:
        """Return a replica's loop of steps, each of which is the program `code`."""
        import jax

        step = _primitive()

        def replica(
            changed: Any, sums: Any, kept: Any, count: Any, batches: Any, constants: Any
        ) -> Any:
            number = jax.lax.axis_index(AXIS).astype(np.int32)
            same = dict(zip(self._kept, kept, strict=True)) | constants

            def next_step(at: Any, before: Any) -> Any:
                changed, sums, results = before
                # As if each were an argument: no operation of the step is merged with its choice.
                batch = jax.lax.optimization_barrier([each[at] for each in batches])
                values = same | dict(zip(self._changed, changed, strict=True))
                values |= dict(zip(self._sums, sums, strict=True))
                captured = [values[at] for at in sorted(values)]
                made = step.bind(number, *batch, *captured, code=code, shapes=shapes)
                return (
                    [made[self._outputs[at]] for at in self._changed],
                    [made[self._outputs[at]] for at in self._sums],
                    [
                        of_all.at[at].set(each)
                        for of_all, each in zip(results, made[: self._results], strict=True)
                    ],
                )

            results = [
                jax.numpy.zeros((self.most, *shape), dtype)
                for shape, dtype in shapes[: self._results]
            ]
            start = changed, [each[0] for each in sums], results
            changed, sums, results = jax.lax.fori_loop(0, count, next_step, start)
            return (
                changed,
                [each[None] for each in sums],
                [each[None] for each in results],
                number[None],
            )

        return replica


@functools.cache
def _primitive() -> Any:
    """Return the operation of JAX that is a program of StableHLO."""
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    def lower(context: Any, *arguments: Any, code: bytes, shapes: Any) -> Any:
        module, inner = context.module_context, mlir.ir.Module.parse(code)
        types = mlir.ir.SymbolTable(inner.operation)["main"].type.results
        name = mlir.merge_mlir_modules(module.module, "step", inner, dst_symtab=module.symbol_table)
        called = {"callee": mlir.ir.FlatSymbolRefAttr.get(name)}
        return mlir.ir.Operation.create(
            "func.call", results=types, operands=arguments, attributes=called
        ).results

    step = Primitive("tpu_training_step")
    step.multiple_results = True
    step.def_abstract_eval(
        lambda *_, code, shapes: [jax.core.ShapedArray(*each) for each in shapes]
    )
    mlir.register_lowering(step, lower)
    return step


def _stablehlo(hlo: bytes) -> bytes:
    """Return the module in StableHLO, by JAX's public function where it has one (since 0.7)."""
    try:
        from jax.extend.mlir import hlo_to_stablehlo as convert
    except ImportError:
        from jaxlib.xla_client import _xla

        convert = _xla.mlir.hlo_to_stablehlo
    code: bytes = convert(hlo)
    return code


def _make_portable(module: Any) -> None:
    """Let an HloModuleProto be a part of a program of JAX's.

    Sums over replicas become sums over the devices of one program. StableHLO has no copies, which
    TensorFlow asks for where a result is a variable's old value.
    """
    channel = 0
    for number, computation in enumerate(module.computations):
        # TensorFlow counts names up in a process; to JAX's cache, other names are another program.
        computation.name = f"part_{number}"
        for instruction in computation.instructions:
            if instruction.opcode == "all-reduce":
                channel += 1
                instruction.channel_id, instruction.use_global_device_ids = channel, True
            elif instruction.opcode == "copy":
                instruction.opcode = "reshape"
