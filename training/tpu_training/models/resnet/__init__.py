"""`--model=resnet`: ResNet-50 and its relatives, by `--depth`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_training.errors import InputError
from tpu_training.models import params as base
from tpu_training.models.resnet.depths import LARGE, SMALL
from tpu_training.models.spec import DataSpec, image_shape

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class Params(base.Params):
    """SGD with momentum as in public ResNet-50 recipes: a rate of 0.1 per 256 examples."""

    depth: int = base.param(
        50,
        f"{', '.join(map(str, SMALL))} for images like CIFAR's, "
        f"{', '.join(map(str, LARGE))} for those like ImageNet's",
        min(SMALL),
        max(LARGE),
    )
    optimizer: str = base.changed("optimizer", "sgd")
    learning_rate: float = base.changed("learning_rate", 0.1)
    warmup_fraction: float = base.changed("warmup_fraction", 0.05)
    weight_decay: float = base.changed("weight_decay", 1e-4)
    label_smoothing: float = base.changed("label_smoothing", 0.1)


def create_model(params: Params, spec: DataSpec, seed: int) -> "tf.Module":
    """Build the network for images of any size. Raises InputError for an unknown depth."""
    if params.depth not in LARGE | SMALL:
        raise InputError(
            f"--depth={params.depth}: there is no ResNet of that depth; expected one of "
            f"{', '.join(map(str, sorted(LARGE | SMALL)))}"
        )
    _, _, channels = image_shape(spec)
    from tpu_training.models.resnet.network import ResNet

    return ResNet(params.depth, channels, spec.classes, params.precision, seed)
