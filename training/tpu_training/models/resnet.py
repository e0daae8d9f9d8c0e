"""`--model=resnet`: ResNet-50 and its relatives, by `--depth`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_training import params as base
from tpu_training.data.spec import DataSpec, image_shape
from tpu_training.errors import InputError

if TYPE_CHECKING:
    import tensorflow as tf

# Depth -> blocks in each stage; of images like ImageNet's, and like CIFAR's.
LARGE = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
SMALL = {8: (1, 1, 1), 14: (2, 2, 2), 20: (3, 3, 3), 32: (5, 5, 5), 44: (7, 7, 7), 56: (9, 9, 9)}
WITH_BOTTLENECKS = (50, 101, 152)


@dataclass(frozen=True, kw_only=True)
class Params(base.Params):
    """SGD with momentum as in public ResNet-50 recipes: 0.1 for each 256 examples of a batch."""

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
    """Build the network for images of any size. Raises InputError for another depth."""
    if params.depth not in LARGE | SMALL:
        raise InputError(
            f"--depth={params.depth}: there is no ResNet of that depth; expected one of "
            f"{', '.join(map(str, sorted(LARGE | SMALL)))}"
        )
    _, _, channels = image_shape(spec)
    from tpu_training.networks.resnet import ResNet

    return ResNet(params.depth, channels, spec.classes, params.precision, seed)
