"""What a Keras model was compiled with, as a task: the loss of each example, and its metrics."""

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models.contract import checked_losses
from tpu_training.models.keras.metrics import compiled_metrics, targets_for
from tpu_training.models.keras.module import KerasModule
from tpu_training.models.spec import CLASS, LABELS, NUMBERS, DataSpec
from tpu_training.models.task import Losses, Task

# Targets without any that are to be left out, of which Keras' losses know nothing.
_WHOLE = (CLASS, LABELS, NUMBERS)

logger = logging.getLogger(__name__)

# (labels, outputs) -> losses, float32 (batch,) or with more axes
_Each = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def compiled_task(task: Task, module: KerasModule, spec: DataSpec, *, named: bool) -> Task:
    """Return `task` with what the model was compiled with; call outside of the strategy's scope.

    A task that the user `named`, and one that leaves out some of the targets, keeps its own loss.

    Raises:
        InputError: The loss has no value for each example, or a metric does not add up.
    """
    losses = _compiled_loss(module)
    if losses and (named or spec.targets not in _WHOLE):
        logger.warning("keras: the loss of compile() is not used, but that of --task=%s", task.name)
        return task
    return dataclasses.replace(
        task,
        losses=losses or task.losses,
        metrics=lambda spec: compiled_metrics(module, spec, task.metrics(spec)),
    )


def _compiled_loss(module: KerasModule) -> Losses | None:
    import keras

    loss = getattr(module.keras(), "loss", None)
    if isinstance(loss, list | tuple | dict) and len(loss) == 1:
        (loss,) = loss.values() if isinstance(loss, dict) else loss
    if loss is None:
        return None
    each = keras.losses.get(loss)
    if getattr(each, "reduction", "") == "sum":
        raise InputError(
            f"{module.where}: the loss {each.name} is summed over the batch, so that the learning "
            "rate would depend on its size; leave `reduction` out"
        )
    call: _Each = getattr(each, "call", each)

    @functools.wraps(call)
    def losses(outputs: tf.Tensor, labels: tf.Tensor, params: Any) -> tf.Tensor:
        given = module.activated(outputs)
        values = tf.convert_to_tensor(call(targets_for(each, labels, given), given))
        axes = list(range(1, values.shape.rank or 0))
        return tf.cast(tf.reduce_mean(values, axis=axes) if axes else values, tf.float32)

    return checked_losses(losses, losses)
