"""Find out what made a loss that is not finite: the learning rate, or the model and its data."""

import logging
import math

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import training_batches
from tpu_training.errors import DivergedError
from tpu_training.job.job import Job
from tpu_training.loop.state import create_train_state, total_steps
from tpu_training.loop.train import create_train_loop, run_loop

logger = logging.getLogger(__name__)


def explain(error: DivergedError, cluster: Cluster, job: Job, data: DataSet) -> DivergedError:
    """Return `error`, or one that says that no learning rate is to blame.

    Repeats the steps in which it happened with new weights and a learning rate of 0: what is not
    finite then comes from the model or from the examples.
    """
    if error.steps is None:
        return error
    first, last = error.steps
    # The look takes minutes on a TPU, and may be ended.
    logger.warning("diverged: %s; looking whether the learning rate is to blame", error)
    try:
        loss = _loss_without_learning(cluster, job, data, first, last - first)
    except tf.errors.OpError:  # Such as the device's memory, which now holds two models.
        return error
    if math.isfinite(loss):
        return error
    return DivergedError(
        f"the loss became {loss} between step {first} and {last}, and it is so with a learning "
        "rate of 0 as well: the model or the data makes it, not the rate. Look for a division by "
        "0, a logarithm or square root of 0 or less, an exponential without a limit, or a loss "
        "that does so; tf.debugging.enable_check_numerics() in the model's file names the "
        "operation",
        error.steps,
    )


def _loss_without_learning(
    cluster: Cluster, job: Job, data: DataSet, step: int, count: int
) -> float:
    steps = total_steps(job.params, data.manifest)
    state = create_train_state(cluster, job.model, job.params, data.manifest, steps)
    state.optimizer.rate = lambda _: tf.constant(0.0)
    state.step.assign(step)
    batches = training_batches(data, cluster, job.params, step)
    loop = create_train_loop(cluster, job.params, state, batches)
    return run_loop(cluster, loop, count).loss
