"""Sweep: train a new model for one step at each learning rate."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import training_batches
from tpu_training.job.lr_range_test.curve import Curve, Point, exponential_rates
from tpu_training.loop.compiled_loop import create_train_loop
from tpu_training.loop.optimizers.schedules import Schedule
from tpu_training.loop.state import create_train_state
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition

_LINES = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sweep:
    """The range of rates, the number of steps, and the smoothing of the loss."""

    lowest: float
    highest: float
    steps: int
    smoothing: float


def run_sweep(
    cluster: Cluster, model: ModelDefinition, params: Params, data: DataSet, sweep: Sweep
) -> list[Point]:
    """Do one regular training step at each rate, until the loss diverges.

    If a loss that is not finite ended the sweep, it is that of the last point.
    """
    state = create_train_state(cluster, model, params, data.manifest, sweep.steps)
    rates = exponential_rates(sweep.lowest, sweep.highest, sweep.steps)
    state.optimizer.rate = _schedule(rates)
    loop = create_train_loop(cluster, params, state, training_batches(data, cluster, params))
    curve = Curve(sweep.smoothing)
    for step, rate in enumerate(rates):
        with cluster.on_loop_device():
            loss = float(loop(tf.constant(1))[0])
        goes_on = curve.add(rate, loss)
        if not goes_on or step % max(1, sweep.steps // _LINES) == 0 or step == len(rates) - 1:
            logger.info(
                "sweep step=%d/%d learning_rate=%.3g loss=%.4f", step + 1, sweep.steps, rate, loss
            )
        if not goes_on:
            break
    return curve.points


def _schedule(rates: Sequence[float]) -> Schedule:
    def rate(step: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.constant(rates, tf.float32), step)

    return rate
