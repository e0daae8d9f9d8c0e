"""Rematerialisation: compute a block's results again for its gradients, instead of keeping them."""

from typing import Any

from tpu_training.models.declare import param

NONE, BLOCKS = "none", "blocks"


def remat_param() -> Any:
    """Declare the parameter `remat` of a model that has blocks."""
    return param(
        NONE,
        "blocks: compute each block twice, to keep only its input until its gradients are due",
        choices=(NONE, BLOCKS),
    )
