"""Training: loops of steps on the device, and between them the host's part."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from training.checkpoints import Checkpoints
from training.cluster import Cluster
from training.errors import DivergedError, Interrupted
from training.input_pipeline import DataSet, NextBatch, training_batches
from training.params import Params
from training.preprocessing import normalise
from training.progress import Progress
from training.scalars import write_scalars
from training.shutdown import ShutdownRequest
from training.state import TrainState, compute_dtype, total_steps

# number of steps -> (mean loss, share of right answers) over those steps
TrainLoop = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """Outcome of a training: steps done in all, and the rate of those that this process did."""

    steps: int
    steps_per_second: float
    train_loss: float


def train(
    cluster: Cluster,
    params: Params,
    data: DataSet,
    state: TrainState,
    checkpoints: Checkpoints,
    writer: tf.summary.SummaryWriter,
    shutdown: ShutdownRequest,
) -> TrainResult:
    """Train from the state's step to the last one.

    Raises DivergedError when the loss is not finite; the last checkpoint stays as it was. Raises
    Interrupted, with a checkpoint saved, when `shutdown` was requested.
    """
    replica_batch = params.replica_batch_size(cluster.replicas)
    steps = total_steps(params, data.manifest)
    step = int(state.step.numpy())
    # Another order than before the restart: the examples are seen anew, not the same first ones.
    batches = training_batches(data, cluster, replica_batch, params.seed + step)
    loop = create_train_loop(cluster, params, state, batches)
    progress = Progress(steps, params.global_batch_size)
    loss = math.nan
    while step < steps:
        # Loops end where checkpoints are due, so that the interval holds for every loop length.
        until_checkpoint = params.checkpoint_interval - step % params.checkpoint_interval
        count = min(params.steps_per_loop, steps - step, until_checkpoint)
        started = time.monotonic()
        with cluster.on_loop_device():
            loss_tensor, accuracy = loop(tf.constant(count))
            loss = float(loss_tensor)
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss became {loss} between step {step} and {step + count}; lower "
                f"--learning_rate={params.learning_rate:g} or raise "
                f"--warmup_fraction={params.warmup_fraction:g}; "
                f"{checkpoints.describe_latest()} stays as it is"
            )
        step += count
        progress.report(step, count, loss, time.monotonic() - started)
        scalars = {
            "train/loss": loss,
            "train/accuracy": accuracy,
            "train/learning_rate": state.optimizer.rate(step - 1),
            "train/examples_per_second": progress.examples_per_second,
        }
        write_scalars(writer, step, scalars)
        if step == steps or step % params.checkpoint_interval == 0 or shutdown.requested:
            checkpoints.save(step)
        if shutdown.requested and step < steps:
            raise Interrupted(f"SIGTERM came; step {step} is saved, start again to go on")
    return TrainResult(step, progress.steps_per_second, loss)


def create_train_loop(
    cluster: Cluster, params: Params, state: TrainState, next_batch: NextBatch
) -> TrainLoop:
    """Return a compiled function that does a given number of steps without leaving the device."""
    strategy, model = cluster.strategy, state.model
    dtype = compute_dtype(params, cluster)

    def replica_step(
        images: tf.Tensor, labels: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(normalise(images, dtype))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            # Gradients are summed over the replicas: the mean is over the global batch.
            loss = tf.reduce_sum(losses) / params.global_batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        state.optimizer.apply(gradients, step)
        right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        return loss, tf.reduce_sum(tf.cast(right, tf.float32)) / params.global_batch_size

    def loop(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss_sum, accuracy_sum = tf.constant(0.0), tf.constant(0.0)
        for _ in tf.range(count):
            images, labels = next_batch()
            losses, accuracies = strategy.run(replica_step, (images, labels, state.step))
            loss_sum += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
            accuracy_sum += strategy.reduce(tf.distribute.ReduceOp.SUM, accuracies, axis=None)
            state.step.assign_add(1)
        steps = tf.cast(count, tf.float32)
        return loss_sum / steps, accuracy_sum / steps

    compiled: TrainLoop = tf.function(loop)
    return compiled
