"""Mixup and CutMix, in the compiled step: examples become mixtures of two, and so do labels."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models.params import Params
from tpu_training.models.spec import MASK, TOKEN_CLASSES, DataSpec
from tpu_training.models.step_context import next_seed

_QUANTILES = 1024
_BISECTIONS = 50

# images -> images, and the share of each one's own label
Mix = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def create_mix(params: Params, spec: DataSpec) -> Mix | None:
    """Return what mixes the images of a batch's part with those of the reversed part.

    One share is drawn for the whole part, from Beta(a, a): of all pixels for mixup (Zhang et al.,
    arXiv:1710.09412), of the area for CutMix (Yun et al., arXiv:1905.04899). With both, half of
    the parts are mixed in each way. The seeds are the step's. None where neither is asked for.

    Raises:
        InputError: The examples are no images, or their targets have places of their own.
    """
    asked = [f"--{name}={getattr(params, name):g}" for name in ("mixup", "cutmix")]
    if not (params.mixup or params.cutmix):
        return None
    if spec.kind != "image" or spec.targets in (MASK, TOKEN_CLASSES):
        raise InputError(
            f"{' '.join(asked)}: is for images that have labels as a whole, but the data set holds "
            f"{spec.kind}s with targets of the form {spec.targets}; omit it"
        )
    tables = {
        name: tf.constant(beta_quantiles(alpha), tf.float32)
        for name, alpha in (("mixup", params.mixup), ("cutmix", params.cutmix))
        if alpha
    }

    def mix(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shape = images.shape[1:3]
        kept = {
            "mixup": lambda table: tf.fill(shape, _draw(table)),
            "cutmix": lambda table: _outside_of_a_box(shape, _draw(table)),
        }
        masks = [kept[name](table) for name, table in tables.items()]
        mask = masks[0]
        if len(masks) == 2:
            mask = tf.where(tf.random.stateless_uniform((), next_seed()) < 0.5, *masks)
        share = mask[:, :, tf.newaxis]
        wide = tf.cast(images, tf.float32)
        mixed = share * wide + (1.0 - share) * wide[::-1]
        # Bytes stay bytes, which models expect; half a grey level is lost at most.
        mixed = tf.round(mixed) if images.dtype.is_integer else mixed
        return tf.cast(mixed, images.dtype), tf.reduce_mean(mask)

    return mix


def _draw(table: tf.Tensor) -> tf.Tensor:
    """Draw from the distribution with these quantiles; TPUs have no kernel for Beta or gamma."""
    place = tf.random.stateless_uniform((), next_seed()) * _QUANTILES
    below = tf.minimum(tf.cast(place, tf.int32), _QUANTILES - 1)
    rest = place - tf.cast(below, tf.float32)
    return table[below] * (1.0 - rest) + table[below + 1] * rest


def _outside_of_a_box(shape: tuple[int, int], share: tf.Tensor) -> tf.Tensor:
    """Return 1 outside of a random box of the area 1 - `share`, clipped at the edges, 0 inside."""
    side = tf.sqrt(1.0 - share)
    centre = tf.random.stateless_uniform((2,), next_seed())
    inside = []
    for axis, size in enumerate(shape):
        half = tf.floor(side * size) / 2.0
        middle = tf.floor(centre[axis] * size)
        places = tf.range(size, dtype=tf.float32)
        inside.append((places >= middle - half) & (places < middle + half))
    return 1.0 - tf.cast(inside[0][:, tf.newaxis] & inside[1], tf.float32)


def beta_quantiles(alpha: float) -> npt.NDArray[np.float64]:
    """Return the quantiles of Beta(`alpha`, `alpha`) in equal steps from 0 to 1."""
    parts = np.linspace(0.0, 1.0, _QUANTILES + 1)
    low, high = np.zeros_like(parts), np.ones_like(parts)
    with tf.init_scope():
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            below = tf.math.betainc(tf.constant(alpha, tf.float64), alpha, middle).numpy() < parts
            low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2
