"""Rematerialisation: compute a block's results again for its gradients, instead of keeping them."""

from collections.abc import Callable
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


def rematerialised(block: Callable[[Any], Any], remat: str, training: bool) -> Callable[[Any], Any]:
    """Return `block`, which maps a tensor to one; in training with `remat` it is computed twice.

    The second time it draws the same random numbers, and records no statistics.
    """
    if remat == NONE or not training:
        return block
    import tensorflow as tf

    from tpu_training.models.step_context import repeatable

    return tf.recompute_grad(repeatable(block))  # type: ignore[no-any-return]
