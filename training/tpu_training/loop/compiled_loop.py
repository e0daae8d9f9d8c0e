"""Compile the loop of training steps: sum gradients over parts and replicas, update once."""

from collections.abc import Callable

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.input.deal import NextBatch
from tpu_training.loop.graphs import repeat
from tpu_training.loop.seeds import derive_seed
from tpu_training.loop.state import TrainState
from tpu_training.models.params import Params
from tpu_training.models.step_context import StepContext, step_context, update_averages

# number of steps -> (mean loss, accuracy) over those steps
TrainLoop = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def create_train_loop(
    cluster: Cluster, params: Params, state: TrainState, next_batch: NextBatch
) -> TrainLoop:
    """Return a compiled function that does a given number of steps on the device."""
    strategy = cluster.strategy
    replica_step = _create_replica_step(cluster, params, state)

    def step(_: tf.Tensor, sums: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        features, labels = next_batch()
        losses, accuracies = strategy.run(replica_step, (features, labels, state.step))
        loss = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        accuracy = strategy.reduce(tf.distribute.ReduceOp.SUM, accuracies, axis=None)
        state.step.assign_add(1)
        return sums[0] + loss, sums[1] + accuracy

    def loop(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss, accuracy = repeat(count, (tf.constant(0.0), tf.constant(0.0)), step)
        steps = tf.cast(count, tf.float32)
        return loss / steps, accuracy / steps

    compiled: TrainLoop = tf.function(loop, autograph=False)
    return compiled


def _create_replica_step(
    cluster: Cluster, params: Params, state: TrainState
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return the step of one replica on its share of a batch, which updates all copies."""
    variables = state.model.trainable_variables
    part_size = params.part_batch_size(cluster.replicas)
    parts = params.gradient_accumulation
    seed = [derive_seed(params.seed, "steps", half) for half in range(2)]

    def take_part(
        features: tf.Tensor, labels: tf.Tensor, step_seed: tf.Tensor, part: tf.Tensor
    ) -> tuple[StepContext, list[tf.Tensor]]:
        """Return loss, accuracy and gradients of one part, as shares of the global batch."""
        features = tf.reshape(features, (parts, part_size, *features.shape[1:]))[part]
        labels = tf.reshape(labels, (parts, part_size))[part]
        part_seed = tf.random.experimental.stateless_fold_in(step_seed, part)
        with step_context(part_seed) as context, tf.GradientTape() as tape:
            logits = state.forward(features, training=True)
            # Gradients are summed over parts and replicas: the mean is over the global batch.
            losses = state.losses(logits, labels, params)
            loss = tf.reduce_sum(losses) / params.global_batch_size
        gradients = tape.gradient(
            loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        share = tf.reduce_sum(tf.cast(right, tf.float32)) / params.global_batch_size
        # Embeddings have sparse gradients, which can't be summed up in a loop.
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        shares = [statistic / (parts * cluster.replicas) for statistic in context.statistics]
        return context, [loss, share, *dense, *shares]

    def replica_step(
        features: tf.Tensor, labels: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        replica = tf.distribute.get_replica_context()
        step_seed = tf.random.experimental.stateless_fold_in(tf.constant(seed), step)
        step_seed = tf.random.experimental.stateless_fold_in(
            step_seed, replica.replica_id_in_sync_group
        )
        context, sums = take_part(features, labels, step_seed, tf.constant(0))

        def add_part(number: tf.Tensor, sums: list[tf.Tensor]) -> list[tf.Tensor]:
            more = take_part(features, labels, step_seed, number + 1)[1]
            return [tf.add(*pair) for pair in zip(sums, more, strict=True)]

        if parts > 1:
            # A loop on the device, as parts side by side would all need their memory at once.
            sums = repeat(parts - 1, sums, add_part)
        loss, accuracy, *rest = sums
        summed = replica.all_reduce(tf.distribute.ReduceOp.SUM, rest)
        state.optimizer.apply(summed[: len(variables)], step)
        update_averages(context.averages, summed[len(variables) :])
        return loss, accuracy

    return replica_step
