"""Train a new model at many rates: one step at each (the sweep), or some steps at one (a trial)."""

import dataclasses
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tpu_training.checkpoints.initial_weights import load_initial_weights
from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import training_batches
from tpu_training.job.lr_range_test.curve import Curve, Point, exponential_rates
from tpu_training.job.lr_range_test.trials import Trials, explore
from tpu_training.loop.optimizers import create_schedule
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop, run_loop
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition

_LINES = 20
# The end of a trial over which its loss is averaged: batches differ.
_END = 0.2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sweep:
    """The range of rates, the number of steps, the smoothing of the loss, the steps of a trial."""

    lowest: float
    highest: float
    steps: int
    smoothing: float
    trial_steps: int = 100


class RateTrainer:
    """Trains the same new model again and again, at rates that are given step by step.

    It is compiled once: the rates are a variable, and a new start restores the first weights.
    `state` is what the last training has left.
    """

    def __init__(
        self, cluster: Cluster, model: ModelDefinition, params: Params, data: DataSet, longest: int
    ) -> None:
        """Prepare for at most `longest` steps from each start."""
        self._cluster, self._params, self._longest = cluster, params, longest
        self.state = state = create_train_state(cluster, model, params, data.manifest, longest)
        load_initial_weights(cluster, params, state.model)
        with cluster.strategy.scope():
            self._rates = tf.Variable(
                tf.zeros(longest),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        state.optimizer.rate = lambda step: tf.gather(self._rates, tf.maximum(step, 0))
        self._variables = [*state.model.variables, *state.optimizer.variables, state.step]
        self._first = [variable.numpy() for variable in self._variables]
        batches = training_batches(data, cluster, params)
        self._loop = create_train_loop(cluster, params, state, batches)

    def start(self, rates: Sequence[float]) -> None:
        """Begin anew, with a step at each of `rates`."""
        for variable, value in zip(self._variables, self._first, strict=True):
            variable.assign(value)
        missing = self._longest - len(rates)
        self._rates.assign(np.pad(np.array(rates, np.float32), (0, missing)))

    def do(self, steps: int) -> float:
        """Do the next `steps` and return their mean loss."""
        return run_loop(self._cluster, self._loop, steps).loss

    def try_rate(self, rate: float, steps: int) -> float:
        """Train with `rate` as the peak of the job's schedule; return the loss at the end."""
        schedule = create_schedule(dataclasses.replace(self._params, learning_rate=rate), steps)
        self.start([float(schedule(tf.constant(step, tf.int64))) for step in range(steps)])
        end = max(1, round(_END * steps))
        before = self.do(steps - end)
        loss = self.do(end) if math.isfinite(before) else math.nan
        logger.info("trial steps=%d learning_rate=%.3g loss=%.4f", steps, rate, loss)
        return loss


def run_sweep(trainer: RateTrainer, sweep: Sweep) -> list[Point]:
    """Do one regular training step at each rate, until the loss diverges.

    If a loss that is not finite ended the sweep, it is that of the last point.
    """
    rates = exponential_rates(sweep.lowest, sweep.highest, sweep.steps)
    trainer.start(rates)
    curve = Curve(sweep.smoothing)
    for step, rate in enumerate(rates):
        loss = trainer.do(1)
        goes_on = curve.add(rate, loss)
        if not goes_on or step % max(1, sweep.steps // _LINES) == 0 or step == len(rates) - 1:
            logger.info(
                "sweep step=%d/%d learning_rate=%.3g loss=%.4f", step + 1, sweep.steps, rate, loss
            )
        if not goes_on:
            break
    return curve.points


def run_trials(trainer: RateTrainer, sweep: Sweep, start: float, first: float) -> Trials:
    """Train shortly at `start` and at rates around it; `first` is the loss before any step."""
    return explore(
        start,
        first,
        sweep.lowest,
        sweep.highest,
        lambda rate: trainer.try_rate(rate, sweep.trial_steps),
    )
