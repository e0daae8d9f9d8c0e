"""Learning-rate schedules: a linear warm-up to the peak, then one of several decays."""

import math
from collections.abc import Callable

import tensorflow as tf

from tpu_training.models.params import Params

# step, counted from 0 -> learning rate
Schedule = Callable[[tf.Tensor], tf.Tensor]


def create_schedule(params: Params, steps: int) -> Schedule:
    """Return the schedule that `params` describes, for a run of `steps` steps.

    The warm-up reaches the peak with its last step. After it, `constant` keeps the peak, `cosine`
    and `linear` fall to 0, and two schedules multiply by `decay_factor` per `decay_interval`:
    `step` after each whole interval since the first step, `exponential` smoothly since the warm-up.
    """
    warmup = max(1.0, params.warmup_fraction * steps)
    rest = max(1.0, steps - warmup)
    shares: dict[str, Schedule] = {
        "constant": lambda position: tf.ones_like(position),
        "cosine": lambda position: 0.5 * (1.0 + tf.cos(math.pi * _part(position, warmup, rest))),
        "linear": lambda position: 1.0 - _part(position, warmup, rest),
        "step": lambda position: params.decay_factor ** tf.floor(intervals(position - 1.0)),
        "exponential": lambda position: params.decay_factor ** intervals(position - warmup),
    }
    share = shares[params.schedule]

    def intervals(done: tf.Tensor) -> tf.Tensor:
        return tf.maximum(done, 0.0) / (params.decay_interval * steps)

    def rate(step: tf.Tensor) -> tf.Tensor:
        position = tf.cast(step, tf.float32) + 1.0
        rising = position / warmup
        return params.learning_rate * tf.where(position < warmup, rising, share(position))

    return rate


def _part(position: tf.Tensor, warmup: float, rest: float) -> tf.Tensor:
    return tf.clip_by_value((position - warmup) / rest, 0.0, 1.0)
