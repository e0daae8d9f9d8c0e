"""A model: created, checked while its first step is traced, its variables named and chosen."""

import dataclasses
import functools
import inspect
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models.keras import KerasModule, adapt, creation, is_keras_model, is_keras_own
from tpu_training.models.registry import CreateModel, ModelDefinition
from tpu_training.models.spec import (
    CLASS,
    LABELS,
    NUMBERS,
    SEVERAL,
    DataSpec,
    Losses,
    Metric,
    Step,
    Task,
    mean,
)


def create_model(definition: ModelDefinition, params: Any, spec: DataSpec, seed: int) -> tf.Module:
    """Return a new model; call in the strategy's scope. `params.precision` must be a type.

    Raises:
        InputError: A Keras model that can't be trained on data of `spec`.
    """
    if not definition.own:
        return definition.create_model(params, spec, seed)
    with creation(definition.create_model, seed, params.precision):
        model = definition.create_model(params, spec, seed)
        where = line_of(definition.create_model)
        return adapt(model, spec, where) if is_keras_model(model, where) else model


# Check that a user's model and loss return what training needs, while the first step is traced.


def check_model(model: object, create_model: CreateModel) -> None:
    """Raise InputError if what `create_model` returned is no model."""
    what = "create_model returned " + _described(model)
    if not isinstance(model, tf.Module):
        problem = f"{what}, expected a tf.Module"
    elif not callable(model):
        problem = f"{what} that can't be called, expected `__call__(self, features, training)`"
    elif not getattr(model, "trainable_variables", ()):
        problem = (
            f"{what} that has no trainable variables: keep layers and variables as attributes of "
            "a tf.Module"
        )
    else:
        return
    raise InputError(f"{line_of(create_model)}: {problem}")


def checked_forward(
    forward: Callable[..., tf.Tensor], model: tf.Module, spec: DataSpec
) -> Callable[..., tf.Tensor]:
    """Return `forward`, which calls `model`, with a check of its logits' shape and type."""

    def checked(features: Any, training: bool) -> tf.Tensor:
        logits = forward(features, training=training)
        if spec.several:
            return logits
        examples = tf.nest.flatten(features)[0].shape[0]
        expected = tf.TensorSpec((examples, *spec.output_shape), tf.float32)
        if _fits(logits, expected):
            return logits
        wanted = f"{_described(expected)}, as the task needs it for the dataset's {spec.targets}"
        if spec.output_shape == (spec.classes,) and spec.targets == CLASS:
            what = f"a number for each of the dataset's {spec.classes} classes"
            wanted = f"logits, {_described(expected)}: {what}"
        raise InputError(
            f"{line_of(type(model).__call__)}: {type(model).__name__} returned "
            f"{_described(logits)}, expected {wanted}"
        )

    return checked


def checked_losses(losses: Losses, original: Losses) -> Losses:
    """Return `losses`, made from the user's function `original`, with a check of what it gives."""

    def checked(logits: tf.Tensor, labels: tf.Tensor, params: Any) -> tf.Tensor:
        where, each = f"{line_of(original)}: losses", losses(logits, labels, params)
        return _one_for_each(each, labels, where, "the loss of each example")

    return checked


def checked_shares(shares: Callable[[Any], Any], original: Any) -> Callable[[Any], Any]:
    """Return `shares`, made from the user's function `original`, with a check of what it gives."""

    def checked(targets: Any) -> tf.Tensor:
        where = f"{line_of(original)}: shares"
        return _one_for_each(shares(targets), targets, where, "how much each example counts")

    return checked


def _one_for_each(found: Any, targets: Any, where: str, what: str) -> tf.Tensor:
    """Return `found` if it has a float32 for each example. Raises InputError."""
    expected = tf.TensorSpec((tf.nest.flatten(targets)[0].shape[0],), tf.float32)
    if not _fits(found, expected):
        raise InputError(
            f"{where} returned {_described(found)}, expected {what}, {_described(expected)}"
        )
    return found


def checked_step(step: Step, original: Step, parts: Collection[str]) -> Step:
    """Return `step`, made from the user's `original`, with a check of what it gives.

    Its loss becomes the loss of each example by part of the model, or under "" without `parts`.
    """

    def checked(model: Any, batch: tuple[Any, Any], context: Any) -> tuple[Any, Mapping[str, Any]]:
        examples = tf.nest.flatten(batch[0])[0].shape[0]
        wrong = f"{line_of(original)}: step returned"
        found = step(model, batch, context)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise InputError(
                f"{wrong} {_described(found)}, expected the loss and a dictionary of metrics"
            )
        losses = found[0] if parts else {"": found[0]}
        if not isinstance(losses, Mapping) or set(losses) != set(parts or ("",)):
            has = ", ".join(losses) if isinstance(losses, Mapping) else _described(losses)
            raise InputError(
                f"{wrong} {has} as its loss, expected a dictionary with a loss for each of the "
                f"task's optimizers: {', '.join(parts)}"
            )

        def each(name: str, value: Any) -> tf.Tensor:
            values = tf.cast(value, tf.float32)
            if values.shape not in ((), (examples,)):
                raise InputError(
                    f"{wrong} {name} of the shape {values.shape}, expected a number, or one for "
                    f"each of this replica's {examples} examples"
                )
            return tf.broadcast_to(values, (examples,))

        return (
            {name: each(f"the loss {name}".strip(), value) for name, value in losses.items()},
            {name: each(name, value) for name, value in found[1].items()},
        )

    return checked


def checked_metrics(task: Task, spec: DataSpec) -> Sequence[Metric]:
    """Return the metrics of a user's `task`, or raise InputError if they are of another type."""
    metrics = task.metrics(spec)
    wrong = not isinstance(metrics, list | tuple) or [
        metric for metric in metrics if not isinstance(metric, Metric)
    ]
    if wrong:
        raise InputError(
            f"{line_of(task.metrics)}: metrics returned {metrics!r}, expected a list of "
            "Metric(name, sums, value)"
        )
    names = ["loss", *(metric.name for metric in metrics if metric.value)]
    if task.best not in names:
        raise InputError(f"the task {task.name} has best={task.best!r}; use {' or '.join(names)}")
    return metrics


def check_sums(metric: Metric, few: Sequence[Any], more: Sequence[Any]) -> None:
    """Raise InputError if a metric's sums differ in shape between few and more examples."""
    for sums, others in zip(few, more, strict=True):
        if not tf.is_tensor(sums) or not (sums.dtype.is_integer or sums.dtype.is_floating):
            raise InputError(
                f"{line_of(metric.sums)}: the metric {metric.name} returned {_described(sums)}, "
                "expected a tensor of numbers, or a tuple of tensors"
            )
        if not sums.shape.is_fully_defined() or sums.shape != others.shape:
            raise InputError(
                f"{line_of(metric.sums)}: the metric {metric.name} returned "
                f"{_described(sums)} for 2 examples and {_described(others)} for 3; sum over the "
                "batch, so that the shape is the same for every batch"
            )


def check_value(metric: Metric, value: object) -> None:
    """Raise InputError if the figure that a metric's `value` made is no number."""
    assert metric.value
    array = np.asarray(value)
    if array.shape or array.dtype.kind not in "fiub":
        raise InputError(
            f"{line_of(metric.value)}: the value of the metric {metric.name} is "
            f"{type(value).__name__} of the shape {array.shape}, expected a number"
        )


def _fits(value: object, expected: tf.TensorSpec) -> bool:
    return tf.is_tensor(value) and bool(expected.is_compatible_with(value))


def _described(value: Any) -> str:
    if tf.is_tensor(value) or isinstance(value, tf.TensorSpec):
        return f"{value.dtype.name} of the shape {value.shape}"
    return "None" if value is None else f"a {type(value).__name__}"


def line_of(function: Callable[..., Any]) -> str:
    """Return FILE:LINE of the definition of `function`."""
    plain = inspect.unwrap(getattr(function, "func", function))
    code = getattr(plain, "__code__", None) or getattr(type(plain).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


# Name a model's variables by their paths, and choose among them by patterns.

# Names that a message lists; more would hide the rest of it.
_MOST_SHOWN = 12


def variable_names(model: tf.Module) -> list[str]:
    """Return the paths of `model.trainable_variables`, such as `conv_1/kernel`, in their order."""
    trained = {id(variable) for variable in model.trainable_variables}
    return [path for path, variable in variable_paths(model) if id(variable) in trained]


def variable_paths(model: tf.Module) -> Iterator[tuple[str, tf.Variable]]:
    """Yield all variables of `model` with their paths; their own names repeat, as `kernel`."""
    found = model._flatten(
        predicate=lambda value: isinstance(value, tf.Variable),
        with_path=True,
        expand_composites=True,
    )
    for path, variable in found:
        yield "/".join(map(str, path)), variable


def layer_of(path: str) -> str:
    """Return the part of a model that the variable at `path` is in: `blocks/3`, or `head`."""
    parts = path.split("/")
    numbered = (place + 1 for place, part in enumerate(parts) if part.isdigit())
    return "/".join(parts[: next(numbered, 1)])


def split_patterns(text: str) -> list[str]:
    """Return the patterns in a list with commas."""
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def matches(path: str, pattern: str) -> bool:
    """Return whether `pattern` means `path`, or a part of the model that `path` is in."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def check_pattern(flag: str, pattern: str, paths: Sequence[str]) -> None:
    """Raise InputError where `pattern` matches none of `paths`."""
    if not any(matches(path, pattern) for path in paths):
        raise InputError(
            f"{flag}: {pattern!r} matches none of the model's variables, such as "
            f"{some(paths)}; its parts are {some(list(dict.fromkeys(map(layer_of, paths))))}"
        )


def some(names: Sequence[str]) -> str:
    """Return the first of `names`, and how many more there are."""
    rest = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


# --- What a Keras model was compiled with, as a task: the loss of each example, and its metrics.

# Targets without any that are to be left out, of which Keras' losses know nothing.
_WHOLE = (CLASS, LABELS, NUMBERS, SEVERAL)

logger = logging.getLogger(__name__)

# (labels, outputs) -> losses, float32 (batch,) or with more axes
_Each = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def compiled_task(task: Task, module: KerasModule, spec: DataSpec, *, named: bool) -> Task:
    """Return `task` with what the model was compiled with; call outside of the strategy's scope.

    A task that the user `named`, and one that leaves out some of the targets, keeps its own loss.

    Raises:
        InputError: The loss has no value for each example, or a metric does not add up.
    """
    losses = _compiled_loss(module, spec)
    if losses and (named or spec.targets not in _WHOLE):
        logger.warning("keras: the loss of --task=%s replaces that of compile()", task.name)
        return task
    return dataclasses.replace(
        task,
        losses=losses or task.losses,
        metrics=lambda spec: compiled_metrics(module, spec, task.metrics(spec)),
    )


def _compiled_loss(module: KerasModule, spec: DataSpec) -> Losses | None:
    """Return the loss of compile() for each example; None if it has none.

    Of several targets it is the sum of their losses, each with its part of `loss_weights`.
    """
    loss = getattr(module.keras(), "loss", None)
    if loss is None or not spec.several:
        return None if loss is None else _one_loss(module, loss)
    names = {name for name, *_ in spec.several}
    if not isinstance(loss, Mapping) or set(loss) != names:
        raise InputError(
            f"{module.where}: loss={loss!r}: expected a dictionary with a loss for each of the "
            f"targets {', '.join(sorted(names))}"
        )
    factors = module.keras()._compile_loss._user_loss_weights or {}
    parts = {name: _one_loss(module, each) for name, each in loss.items()}

    def losses(outputs: Any, targets: Any, params: Any) -> tf.Tensor:
        return tf.add_n(
            [
                factors.get(name, 1.0) * each(outputs[name], targets[name], params)
                for name, each in parts.items()
            ]
        )

    return losses


def _one_loss(module: KerasModule, loss: Any) -> Losses:
    """Return a loss of compile() for each example.

    Keras' own reduction would count what only fills the last batch.
    """
    import keras

    if isinstance(loss, list | tuple | dict) and len(loss) == 1:
        (loss,) = loss.values() if isinstance(loss, dict) else loss
    each = keras.losses.get(loss)
    if getattr(each, "reduction", "") == "sum":
        raise InputError(
            f"{module.where}: the loss {each.name} is summed over the batch, so the learning rate "
            "would depend on its size; remove `reduction`"
        )
    # `call` has a value for each example; `__call__` would reduce them.
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
    the shape of the outputs. A function of the user's own gets the labels of the dataset.
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
    if spec.several:
        return [*counted, *_metrics_of_several(module, spec)]
    found = {metric.name: metric for metric in counted}
    # Names, functions and objects, in any nesting.
    for given in tf.nest.flatten(getattr(module.keras()._compile_metrics, "_user_metrics", None)):
        if given is not None and (metric := _metric(module, spec, given, set(found))):
            found.setdefault(metric.name, metric)
    return list(found.values())


def _metrics_of_several(module: KerasModule, spec: DataSpec) -> Iterator[Metric]:
    """Yield the metrics of compile() for each target, called `TARGET_METRIC`."""
    given = getattr(module.keras()._compile_metrics, "_user_metrics", None) or {}
    forms = {name: (shape, dtype) for name, shape, dtype in spec.several}
    if not isinstance(given, Mapping) or set(given) - set(forms):
        raise InputError(
            f"{module.where}: metrics={given!r}: expected a dictionary with metrics of the targets "
            f"{', '.join(forms)}"
        )
    for name, each in given.items():
        shape, dtype = forms[name]
        outputs = module.output_shapes()[name]
        kind = NUMBERS if tf.as_dtype(dtype).is_floating else LABELS if shape else CLASS
        classes = max(outputs[-1], 2) if kind == CLASS else math.prod(shape)
        one = DataSpec("array", (), "", classes, targets=kind, outputs=outputs)
        for asked in tf.nest.flatten(each):
            plain = asked in ("acc", "accuracy")
            exact = "sparse_categorical_accuracy" if kind == CLASS else "binary_accuracy"
            if metric := _metric(module, one, exact if plain else asked, set()):
                yield dataclasses.replace(
                    metric,
                    name=f"{name}_{'accuracy' if plain else metric.name}",
                    sums=functools.partial(_sums_of, name, metric.sums),
                )


def _sums_of(name: str, sums: Any, outputs: Any, targets: Any, weights: tf.Tensor) -> Any:
    return sums(outputs[name], targets[name], weights)


def _metric(module: KerasModule, spec: DataSpec, given: Any, counted: set[str]) -> Metric | None:
    """Return the metric that compile() got as `given`; None if it is counted already."""
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
    """Return the sums of a function whose values, over any axes, are averaged per example."""

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
            f"{where} has a state that doesn't add up over batches, so it can't be counted over "
            "replicas; remove it"
        )
    zeros = [np.zeros(variable.shape, variable.dtype) for variable in metric.variables]

    def sums(outputs: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        output = module.activated(outputs)
        labels = targets_for(metric, labels, output)
        # Keras' own state would be one for all batches; from zeros it is the sum of this batch.
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

    # The first call creates the metric's variables. A mean of means, say, fails the comparison.
    state(0)
    parts = zip(state(0), state(1), state(0, 1), strict=True)
    found = all(np.allclose(first + second, both, rtol=1e-4) for first, second, both in parts)
    metric.reset_state()
    # `sums` starts at zeros, so a metric that itself starts elsewhere would be counted wrongly.
    return found and not any(np.any(np.asarray(variable)) for variable in metric.variables)
