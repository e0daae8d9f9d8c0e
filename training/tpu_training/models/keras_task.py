"""What a Keras model was compiled with, as a task: the loss of each example, and its metrics."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models.keras import KerasModule, is_keras_own
from tpu_training.models.model import checked_losses
from tpu_training.models.spec import CLASS, LABELS, NUMBERS, DataSpec
from tpu_training.models.task import Losses, Metric, Task, mean

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


_EXAMPLES = 4


def targets_for(function: Any, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return `labels` as a loss or metric takes them along with a model's `outputs`.

    Keras' functions for class numbers are called `sparse`; its others take the numbers 0 and 1 in
    the shape of the outputs. A function of the user's own gets the labels of the data set.
    """
    name = getattr(function, "__name__", type(function).__name__).lower()
    if name.startswith("sparse") or not is_keras_own(function):
        return labels
    if labels.shape.rank == outputs.shape.rank:
        return tf.cast(labels, tf.float32)
    if outputs.shape[-1] == 1:
        return tf.cast(labels, tf.float32)[..., tf.newaxis]
    return tf.one_hot(labels, outputs.shape[-1])


def compiled_metrics(
    module: KerasModule, spec: DataSpec, counted: Sequence[Metric]
) -> list[Metric]:
    """Return the metrics in `counted`, then those of `compile` that are not among them."""
    found = {metric.name: metric for metric in counted}
    for given in _given(module.keras()):
        metric = _metric(module, spec, given, set(found))
        if metric:
            found.setdefault(metric.name, metric)
    return list(found.values())


def _given(model: Any) -> Iterator[Any]:
    """Yield what `compile` was given: names, functions and objects."""
    given = getattr(model._compile_metrics, "_user_metrics", None)
    return (metric for metric in tf.nest.flatten(given) if metric is not None)


def _metric(module: KerasModule, spec: DataSpec, given: Any, counted: set[str]) -> Metric | None:
    if given in ("acc", "accuracy") or getattr(given, "name", given) in counted:
        return None
    import keras

    found = keras.metrics.get(given) if isinstance(given, str) else given
    if isinstance(found, type):
        found = found()
    if isinstance(found, keras.metrics.Metric):
        return _wrapped(module, found) or _stateful(module, spec, found)
    name = str(getattr(found, "__name__", given))
    return Metric(name, _mean_of(module, found, found), mean, in_training=False)


def _wrapped(module: KerasModule, metric: Any) -> Metric | None:
    """Return the metric that is the mean of a function over the examples, as most are."""
    function = getattr(metric, "_fn", None)
    if function is None:
        return None
    options = getattr(metric, "_fn_kwargs", {})
    values = lambda labels, outputs: function(labels, outputs, **options)  # noqa: E731
    return Metric(metric.name, _mean_of(module, metric, values), mean, in_training=False)


def _mean_of(
    module: KerasModule, kind: Any, function: Callable[..., tf.Tensor]
) -> Callable[..., tf.Tensor]:
    def sums(outputs: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        given = module.activated(outputs)
        values = tf.cast(function(targets_for(kind, labels, given), given), tf.float32)
        values = tf.reduce_mean(tf.reshape(values, (tf.shape(weights)[0], -1)), axis=1)
        return tf.stack([tf.reduce_sum(values * weights), tf.reduce_sum(weights)])

    return sums


def _stateful(module: KerasModule, spec: DataSpec, given: Any) -> Metric:
    """Return the metric whose state, after a batch, is the sums of that batch."""
    where = f"{module.where}: the metric {given.name}"
    metric = type(given).from_config(given.get_config())
    if not _adds_up(module, spec, metric):
        raise InputError(
            f"{where} has a state that does not add up over batches, so that it can't be counted "
            "over replicas; leave it out"
        )
    zeros = [np.zeros(variable.shape, variable.dtype) for variable in metric.variables]

    def sums(outputs: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        output = module.activated(outputs)
        labels = targets_for(metric, labels, output)
        start = [tf.constant(value) for value in zeros]
        return tuple(metric.stateless_update_state(start, labels, output, weights))

    def value(state: Any) -> float:
        parts = state if isinstance(state, tuple) else (state,)
        constants = [tf.constant(part, zero.dtype) for part, zero in zip(parts, zeros, strict=True)]
        return float(np.mean(metric.stateless_result(constants)))

    return Metric(metric.name, sums, value, in_training=False)


def _adds_up(module: KerasModule, spec: DataSpec, metric: Any) -> bool:
    """Try it on two small batches, which builds it, too."""
    random = np.random.default_rng(0)
    batches = [
        (
            random.integers(0, max(spec.classes, 1), (_EXAMPLES, *spec.target_shape)),
            random.normal(size=(_EXAMPLES, *spec.output_shape)).astype(np.float32),
        )
        for _ in range(2)
    ]

    def state(*chosen: int) -> list[Any]:
        metric.reset_state()
        for number in chosen:
            labels, outputs = (tf.constant(part) for part in batches[number])
            output = module.activated(outputs)
            metric.update_state(targets_for(metric, labels, output), output)
        return [np.asarray(variable) for variable in metric.variables]

    state(0)
    parts = zip(state(0), state(1), state(0, 1), strict=True)
    found = all(np.allclose(first + second, both, rtol=1e-4) for first, second, both in parts)
    metric.reset_state()
    return found and not any(np.any(np.asarray(variable)) for variable in metric.variables)
