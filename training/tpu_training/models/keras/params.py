"""The parameters of a file with a Keras model. Loads no TensorFlow."""

from dataclasses import dataclass

from tpu_training.models import params as base

# What `compile` gave, or adam.
AUTO = "auto"
_CHOICES = base.Params.__dataclass_fields__["optimizer"].metadata["choices"]


@dataclass(frozen=True, kw_only=True)
class Params(base.Params):
    """Those of every model; a file that has no `Params` takes these."""

    optimizer: str = base.param(
        AUTO,
        "auto is what the Keras model was compiled with, at its own learning rate, else adam; or "
        + ", ".join(_CHOICES),
        choices=(AUTO, *_CHOICES),
    )
