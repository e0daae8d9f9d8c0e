"""The parameters that make training examples harder, on the device."""

from dataclasses import dataclass

from tpu_training.models.declare import param


@dataclass(frozen=True, kw_only=True)
class Regularisation:
    """Mixtures of examples and random changes of images."""

    mixup: float = param(0.0, "a of mixup's Beta(a, a), such as 0.2; 0: no mixup", 0, 100)
    cutmix: float = param(0.0, "a of CutMix's Beta(a, a), such as 1; 0: no CutMix", 0, 100)
