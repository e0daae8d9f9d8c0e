"""`--model=resnet`: ResNet-50 and its relatives, by `--depth`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tpu_training.errors import InputError
from tpu_training.models import params as base
from tpu_training.models.params import remat_param
from tpu_training.models.spec import DataSpec, flat_outputs, image_shape

if TYPE_CHECKING:
    import tensorflow as tf


# The blocks in each stage, by depth: for images like ImageNet's, and like CIFAR's.
LARGE = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
SMALL = {8: (1, 1, 1), 14: (2, 2, 2), 20: (3, 3, 3), 32: (5, 5, 5), 44: (7, 7, 7), 56: (9, 9, 9)}
_WITH_BOTTLENECKS = (50, 101, 152)


@dataclass(frozen=True, kw_only=True)
class Params(base.Params):
    """SGD with momentum as in public ResNet-50 recipes: a rate of 0.1 per 256 examples."""

    by_optimizer: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # The weight decay of timm's recipes with AdamW (arXiv:2201.03545, appendix A).
        "adam": {"learning_rate": 0.001, "weight_decay": 0.05},
        "lion": {"learning_rate": 0.0001, "weight_decay": 0.5},
        "muon": {"learning_rate": 0.001, "weight_decay": 0.05},
        # https://github.com/tensorflow/tpu, models/official/resnet/lars_util.py, below 16,384.
        "lars": {"learning_rate": 10.0},
    }
    depth: int = base.param(
        50,
        f"{', '.join(map(str, SMALL))} for images like CIFAR's, "
        f"{', '.join(map(str, LARGE))} for those like ImageNet's",
        min(SMALL),
        max(LARGE),
    )
    width: int = base.param(1, "factor of the channels, as in wide residual networks", 1, 16)
    remat: str = remat_param()
    stem: str = base.param(
        "conv",
        "space_to_depth: compute the 7x7 stem of the larger ones as 4x4 over blocks of 2x2 pixels",
        choices=("conv", "space_to_depth"),
    )
    batch_norm: str = base.param(
        "replica",
        "normalise by each replica's part of the batch, or by all_replicas",
        choices=("replica", "all_replicas"),
    )
    optimizer: str = base.changed("optimizer", "sgd")
    learning_rate: float = base.changed("learning_rate", 0.1)
    warmup_fraction: float = base.changed("warmup_fraction", 0.05)
    weight_decay: float = base.changed("weight_decay", 1e-4)
    label_smoothing: float = base.changed("label_smoothing", 0.1)


def create_model(params: Params, spec: DataSpec, seed: int) -> tf.Module:
    """Build the network for images of any size. Raises InputError for an unknown depth."""
    if params.depth not in LARGE | SMALL:
        raise InputError(
            f"--depth={params.depth}: there is no ResNet of that depth; expected one of "
            f"{', '.join(map(str, sorted(LARGE | SMALL)))}"
        )
    shape = image_shape(spec)
    _check(params, shape)
    from tpu_training.models.networks import ResNet

    return ResNet(
        (LARGE | SMALL)[params.depth],
        params.width,
        shape[2],
        flat_outputs(spec, "resnet"),
        params.precision,
        seed,
        large=params.depth in LARGE,
        bottlenecks=params.depth in _WITH_BOTTLENECKS,
        remat=params.remat,
        space_to_depth=params.stem != "conv",
        synchronised=params.batch_norm != "replica",
    )


def _check(params: Params, shape: tuple[int, int, int]) -> None:
    """Raise InputError for parameters that exclude each other."""
    if params.stem != "conv" and (params.depth in SMALL or shape[0] % 2 or shape[1] % 2):
        raise InputError(
            f"--stem={params.stem}: is for depths of {min(LARGE)} and more and images of an even "
            f"size, but --depth={params.depth} and the images are {shape[0]} x {shape[1]}"
        )
    if params.batch_norm != "replica" and params.gradient_accumulation > 1:
        raise InputError(
            f"--batch_norm={params.batch_norm} --gradient_accumulation="
            f"{params.gradient_accumulation}: parts of a batch pass one after the other, so the "
            "whole batch's statistics are not there when a part needs them; leave one of them out"
        )
