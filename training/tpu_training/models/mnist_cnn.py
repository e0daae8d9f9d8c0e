"""`--model=mnist_cnn`, the default: a small convolutional network for images of digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_training.models import params as base
from tpu_training.models.spec import DataSpec, flat_outputs, image_shape

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class Params(base.Params):
    """The defaults of every model but for a run of some hundred steps: MNIST in three epochs."""

    squares_momentum: float = base.changed("squares_momentum", 0.99)


def create_model(params: Params, spec: DataSpec, seed: int) -> tf.Module:
    """Build the network for images of any size."""
    from tpu_training.models.networks import MnistCnn

    return MnistCnn(image_shape(spec), flat_outputs(spec, "mnist_cnn"), params.precision, seed)
