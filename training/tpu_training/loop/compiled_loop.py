"""Compile the loop of training steps."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.pipeline import NextBatch, TimedInput
from tpu_training.loop.graphs import repeat
from tpu_training.loop.replica_step import create_replica_step, create_step_sums
from tpu_training.loop.state import TrainState
from tpu_training.models.params import Params

# number of steps -> the fields of LoopFigures as one tensor: each one fetched is a round trip
TrainLoop = Callable[[tf.Tensor], tf.Tensor]


class LoopFigures(NamedTuple):
    """What a loop of steps hands to the host.

    Attributes:
        learning_rate: The rate of the loop's last step.
        input_seconds: The time that the loop waited for input.
        gradient_norm: The mean of the steps' norms of the gradient, before it is clipped.
        variable_norms: The same of each variable's part of it.
        loss: The mean over the loop's examples.
        sums: The sums of the task's metrics; see Tally.
    """

    learning_rate: float
    input_seconds: float
    gradient_norm: float
    variable_norms: npt.NDArray[np.float64]
    loss: float
    sums: npt.NDArray[np.float64]


def run_loop(cluster: Cluster, loop: TrainLoop, count: int) -> LoopFigures:
    """Do `count` steps and wait for their end."""
    with cluster.on_loop_device():
        figures = loop(tf.constant(count)).numpy()
    rate, seconds, variables, norm = figures[:4].tolist()
    norms, (loss, *_) = figures[4 : 4 + int(variables)], figures[4 + int(variables) :]
    sums = figures[5 + int(variables) :]
    return LoopFigures(rate, seconds, norm / count, norms / count, float(loss) / count, sums)


def create_train_loop(
    cluster: Cluster, params: Params, state: TrainState, next_batch: NextBatch
) -> TrainLoop:
    """Return a compiled function that does a given number of steps on the device.

    Loss and metrics stay on the devices until its end: with a value that left them in each step,
    every step would wait for the host.
    """
    strategy = cluster.strategy
    batches = TimedInput(next_batch, cluster)
    with strategy.scope():
        sums = create_step_sums(state)
    replica_step = create_replica_step(params, state, sums)

    def step(_: tf.Tensor, nothing: tuple[()]) -> tuple[()]:
        strategy.run(replica_step, batches())
        return nothing

    def loop(count: tf.Tensor) -> tf.Tensor:
        for each in sums:
            each.assign(tf.zeros(each.shape, each.dtype), read_value=False)
        batches.reset()
        repeat(count, (), step)
        rate = state.optimizer.rate(state.step.read_value() - 1)
        first = [rate, batches.seconds(), len(state.variables)]
        parts = [tf.stack([tf.cast(each, tf.float64) for each in first])]
        parts += [tf.cast(each.read_value(), tf.float64) for each in sums]
        return tf.concat(parts, axis=0)

    compiled: TrainLoop = tf.function(loop, autograph=False)
    return compiled
