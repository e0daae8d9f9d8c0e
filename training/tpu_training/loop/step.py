"""The training step of one replica: sum gradients over parts and replicas, update once.

Everything that a step changes is a variable of its replica: the weights, the step's number and the
sums of loss and metrics. So nothing leaves the device before the loop of steps ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tpu_training.loop.graph import repeat
from tpu_training.loop.state import TrainState, derive_seed
from tpu_training.models.params import Params
from tpu_training.models.step_context import split_weights, step_context, update_averages

Tensors = Sequence[tf.Tensor]
# number of a part -> its sums, gradients and statistics
TakePart = Callable[[tf.Tensor], list[tf.Tensor]]
ReplicaStep = Callable[[tf.Tensor, tf.Tensor], None]


@dataclass(frozen=True)
class Replica:
    """A replica as its step sees it: its `number`, and how to `sum` over all `count` of them."""

    number: tf.Tensor
    count: int
    sum: Callable[[Tensors], Tensors]


def current_replica() -> Replica:
    """Return the strategy's replica whose step is being traced."""
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync

    def sum_over_replicas(values: Tensors) -> Tensors:
        # Alone, MirroredStrategy adds some operations for each of hundreds of tensors.
        return context.all_reduce(tf.distribute.ReduceOp.SUM, list(values)) if count > 1 else values

    return Replica(context.replica_id_in_sync_group, count, sum_over_replicas)


def create_sums(shape: tuple[int, ...], dtype: tf.DType = tf.float32) -> tf.Variable:
    """Return a variable for sums over steps; call in the strategy's scope.

    Each replica adds up its own. Outside of the replicas, the value is the sum over all of them.
    """
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        name="counts" if dtype.is_integer else "sums",
    )


class StepSums(NamedTuple):
    """The variables for the sums of steps.

    `numbers` are of the gradient's norm, the norm of each variable's part of it, the loss and the
    metrics' numbers; `counts` are the metrics' counts, integers, which float32 would round.
    """

    numbers: tf.Variable
    counts: tf.Variable


def create_step_sums(state: TrainState) -> StepSums:
    """Return the variables for the sums of steps; call in the strategy's scope."""
    tally = state.counted
    numbers = create_sums((2 + len(state.variables) + tally.numbers,), tally.dtype)
    return StepSums(numbers, create_sums((tally.counts,), tf.int64))


def create_replica_step(
    params: Params,
    state: TrainState,
    sums: StepSums,
    get_replica: Callable[[], Replica] = current_replica,
) -> ReplicaStep:
    """Return the step of one replica on its share of a batch, which updates all copies.

    It adds the norms of the gradient, the loss, as a share of the global batch's mean, and the sums
    of the task's metrics to `sums`.
    `get_replica` is called while the step is traced.
    """
    variables = state.variables
    seed = [derive_seed(params.seed, "steps", half) for half in range(2)]

    def replica_step(features: tf.Tensor, labels: tf.Tensor) -> None:
        replica, step = get_replica(), tf.identity(state.step)
        step_seed = tf.random.experimental.stateless_fold_in(tf.constant(seed), step)
        step_seed = tf.random.experimental.stateless_fold_in(step_seed, replica.number)
        averages: list[tuple[tf.Variable, float]] = []
        batch = (features, labels)
        take_part = _create_part(params, state, replica, batch, (step, step_seed), averages)
        totals = _sum_of_parts(take_part, params.gradient_accumulation)
        numbers, counts, *rest = totals
        summed = list(replica.sum(rest))
        gradients = summed[: len(variables)]
        if state.task.shares:
            # Known only now: how much all examples of the batch count.
            share = tf.math.divide_no_nan(1.0, summed.pop())
            gradients = [gradient * tf.cast(share, gradient.dtype) for gradient in gradients]
            numbers = tf.concat([numbers[:1] * tf.cast(share, numbers.dtype), numbers[1:]], axis=0)
        state.optimizer.apply(gradients, step)
        update_averages(averages, summed[len(variables) :])
        if state.average:
            state.average.update(step)
        squares = tf.stack([tf.reduce_sum(tf.square(gradient)) for gradient in gradients])
        norms = tf.sqrt(tf.concat([tf.reduce_sum(squares)[None], squares], axis=0))
        # They are alike on all replicas, whose sums are added up.
        norms = tf.cast(norms / replica.count, numbers.dtype)
        sums.numbers.assign_add(tf.concat([norms, numbers], axis=0))
        sums.counts.assign_add(counts)
        state.step.assign_add(1)

    return replica_step


def _sum_of_parts(take_part: TakePart, parts: int) -> list[tf.Tensor]:
    """Return the sums over a batch's parts, from one program for all of them.

    It is a loop on the device: parts side by side would all need their memory at once.
    """
    if parts == 1:
        return take_part(tf.constant(0))
    if tf.executing_eagerly():
        each = [take_part(tf.constant(number)) for number in range(parts)]
        return [tf.add_n(values) for values in zip(*each, strict=True)]
    # Traced to learn the shapes of what the model records, too.
    traced = tf.function(take_part, autograph=False)
    traced = traced.get_concrete_function(tf.TensorSpec((), tf.int32))

    def add_part(number: tf.Tensor, totals: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.add(*pair) for pair in zip(totals, traced(number), strict=True)]

    start = [tf.zeros(total.shape, total.dtype) for total in traced.structured_outputs]
    return repeat(parts, start, add_part)


def _create_part(
    params: Params,
    state: TrainState,
    replica: Replica,
    batch: tuple[tf.Tensor, tf.Tensor],
    number: tuple[tf.Tensor, tf.Tensor],
    averages: list[tuple[tf.Variable, float]],
) -> TakePart:
    """Return a function that takes one part of a replica's examples through the model.

    `number` is the step's, with its seed. The function puts the averages that the statistics are
    for into `averages`.
    """
    step, step_seed = number
    variables = state.variables
    part_size = params.part_batch_size(replica.count)
    parts = params.gradient_accumulation
    features, labels = tf.nest.map_structure(
        lambda each: tf.reshape(each, (parts, part_size, *each.shape[1:])), batch
    )

    def take_part(part: tf.Tensor) -> list[tf.Tensor]:
        """Return what is counted of one part, and its share of the batch's gradients."""
        part_seed = tf.random.experimental.stateless_fold_in(step_seed, part)
        place = {"step": step, "replica": replica.number, "replicas": replica.count}
        begun = step_context(part_seed, state.frozen, replica.sum, **place)
        with begun as context, tf.GradientTape(persistent=len(state.parts) > 1) as tape:
            mine = tf.nest.map_structure(lambda each: each[part], features)
            targets, weights = split_weights(tf.nest.map_structure(lambda x: x[part], labels))
            batch = state.prepare(mine, targets, True)
            if state.own_step:
                losses, outputs = state.own_step(state.model, batch, context)
                targets = batch[1]
            else:
                losses, outputs, targets = _losses(params, state, *batch)
            # Gradients are summed over parts and replicas: the mean is over the global batch.
            whole, counted = params.global_batch_size, tf.constant(part_size, tf.float32)
            if state.task.shares:
                # The step divides by their sum over the batch once it knows it.
                counts_of = state.task.shares(targets)
                whole, counted, weights = 1, tf.reduce_sum(counts_of), weights * counts_of
            means = {name: tf.reduce_sum(v * weights) / whole for name, v in losses.items()}
            shown = tf.add_n([*means.values()])
            for penalty in context.penalties:
                added = penalty * counted / whole
                shown += added
                means = {name: mean + added for name, mean in means.items()}
        gradients = [tf.zeros(())] * len(variables)
        for name, places in state.parts.items():
            found = tape.gradient(
                means[name],
                [variables[at] for at in places],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            for at, gradient in zip(places, found, strict=True):
                gradients[at] = gradient
        numbers, counts = state.counted.count(outputs, targets, tf.ones((part_size,)))
        numbers = tf.concat([tf.cast(shown, numbers.dtype)[None], numbers], axis=0)
        # Embeddings have sparse gradients, which can't be summed up in a loop.
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        shares = [statistic / (parts * replica.count) for statistic in context.statistics]
        averages[:] = context.averages
        return [numbers, counts, *dense, *shares, *([counted] if state.task.shares else [])]

    return take_part


def _losses(
    params: Params, state: TrainState, inputs: Any, targets: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
    """Return the loss of each example under "", the outputs, and the targets that count."""
    inputs, share = state.mix(inputs) if state.mix else (inputs, None)
    outputs = state.scored(inputs, training=True)
    losses = state.losses(outputs, targets, params)
    if share is not None:
        others = targets[::-1]
        losses = share * losses + (1.0 - share) * state.losses(outputs, others, params)
        # Metrics take one target for each example: the one that counts more.
        targets = tf.where(share < 0.5, others, targets)
    return {"": losses}, outputs, targets
