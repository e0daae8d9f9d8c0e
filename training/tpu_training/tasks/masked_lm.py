"""Hidden tokens, from those around them (BERT, arXiv:1810.04805, section 3.1).

15 % of the tokens are targets; of these 80 % are hidden, 10 % become any token and 10 % stay.
"""

import dataclasses

import tensorflow as tf

from tpu_training.models.spec import IGNORED, NOTHING, DataSpec, text_length
from tpu_training.models.step_context import next_seed
from tpu_training.models.task import Prepare, Task
from tpu_training.tasks.counting import token_losses, token_metrics

_CHOSEN, _HIDDEN, _OTHER = 0.15, 0.8, 0.1
_BITS = 24


def model_spec(spec: DataSpec) -> DataSpec:
    """Ask for logits at each token; one more id than the vocabulary's stands for a hidden one."""
    length = text_length(spec)
    return dataclasses.replace(
        spec,
        outputs=(length, spec.vocabulary),
        vocabulary=spec.vocabulary + 1,
        targets=NOTHING,
    )


def prepare(spec: DataSpec) -> Prepare:
    """Return what hides tokens: others in each step, but the same ones in each evaluation."""

    def hide(
        features: tf.Tensor, targets: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        shape = features.shape
        if training:
            chance, kind = (tf.random.stateless_uniform(shape, next_seed()) for _ in range(2))
            other = tf.random.stateless_uniform(
                shape, next_seed(), minval=1, maxval=spec.vocabulary, dtype=tf.int32
            )
        else:
            chance, kind, place = (_drawn_from(features, number) for number in range(3))
            other = 1 + tf.cast(place * (spec.vocabulary - 1), tf.int32)
        chosen = (chance < _CHOSEN) & (features > 0)
        shown = tf.where(kind < _HIDDEN, spec.vocabulary, features)
        shown = tf.where((kind >= _HIDDEN) & (kind < _HIDDEN + _OTHER), other, shown)
        return tf.where(chosen, shown, features), tf.where(chosen, features, IGNORED)

    return hide


def _drawn_from(features: tf.Tensor, number: int) -> tf.Tensor:
    """Draw 0 … 1 for each token from the example alone, whatever batch and replica it is in.

    A polynomial of the tokens modulo 2**32, mixed as in MurmurHash3's last step.
    """
    length = features.shape[1]
    powers = tf.constant([_signed(31**place) for place in range(length)])
    example = tf.reduce_sum(features * powers, axis=1, keepdims=True)
    places = tf.constant([[_signed(0x9E3779B9 * (3 * p + number + 1)) for p in range(length)]])
    mixed = example + places
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        high = tf.bitwise.right_shift(tf.bitcast(mixed, tf.uint32), tf.constant(shift, tf.uint32))
        mixed = tf.bitwise.bitwise_xor(mixed, tf.bitcast(high, tf.int32)) * _signed(factor)
    low = tf.bitwise.bitwise_and(mixed, (1 << _BITS) - 1)
    return tf.cast(low, tf.float32) / (1 << _BITS)


def _signed(number: int) -> int:
    """Return `number` modulo 2**32 as an int32."""
    return (number + 2**31) % 2**32 - 2**31


task = Task(
    name="masked_lm",
    losses=token_losses,
    metrics=token_metrics,
    any_targets=True,
    model_spec=model_spec,
    prepare=prepare,
    best="token_loss",
)
