"""Preprocess batches in parallel, example by example only where necessary."""

from collections.abc import Callable

import tensorflow as tf

from tpu_training.data.input import order
from tpu_training.data.input.order import Plan
from tpu_training.data.preprocessing import masks
from tpu_training.data.preprocessing.evaluate import Preprocessing

_AUTOTUNE = tf.data.AUTOTUNE
_LARGEST_SEED = tf.int32.max
# Hosts of TPUs have about a hundred cores. With two batches no core idles at the end of one; more
# would only take memory.
_EXAMPLES_AT_ONCE, _BATCHES_AT_ONCE = 64, 2


def prepare(batches: tf.data.Dataset, preprocessing: Preprocessing, plan: Plan) -> tf.data.Dataset:
    """Return the elements (step, features, *others) of `batches` as (features, *others).

    The random state of each example comes from the seed, the step and the row in the global batch.
    """
    batches = batches.map(_with_seeds(plan))
    if preprocessing.decode:
        batches = _each_example(batches, preprocessing.decode, preprocessing.stored)
    if preprocessing.masks:
        batches = batches.map(_join)
    if preprocessing.example:
        batches = _each_example(batches, preprocessing.example, preprocessing.shape)
    batch = preprocessing.batch

    def finish(seeds: tf.Tensor, features: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        features = batch(features, seeds) if batch else features
        return *(masks.part(features) if preprocessing.masks else (features,)), *others

    return batches.map(finish, num_parallel_calls=_AUTOTUNE if batch else None)


def _with_seeds(plan: Plan) -> Callable[..., tuple[tf.Tensor, ...]]:
    def draw(step: tf.Tensor, *content: tf.Tensor) -> tuple[tf.Tensor, ...]:
        seeds = tf.random.stateless_uniform(
            (plan.batch, 2),
            order.key(plan.seed, order.AUGMENTATION, step),
            maxval=_LARGEST_SEED,
            dtype=tf.int32,
        )
        return seeds[plan.begin : plan.end], *content

    return draw


def _join(
    seeds: tf.Tensor, features: tf.Tensor, targets: tf.Tensor, *others: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    return seeds, masks.join(features, targets), *others


def _each_example(
    batches: tf.data.Dataset,
    example: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    shape: tuple[int, ...],
) -> tf.data.Dataset:
    """Loop over each batch: one tf.data call per example would cost a fifth of its decoding."""

    def apply(seeds: tf.Tensor, features: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        made = tf.map_fn(
            lambda pair: example(*pair),
            (features, seeds),
            fn_output_signature=tf.TensorSpec(shape, tf.uint8),
            parallel_iterations=_EXAMPLES_AT_ONCE,
        )
        return seeds, made, *others

    return batches.map(apply, num_parallel_calls=_BATCHES_AT_ONCE)
