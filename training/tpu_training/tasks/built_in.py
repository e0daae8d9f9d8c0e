"""The built-in tasks: their losses, what they count over the examples of a batch, their metrics.

Sums are per batch and replica. An example of weight 0 only fills the batch, so everything that is
counted is multiplied by the weights; a place whose target is IGNORED doesn't count either.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.models import layers, spec as specs
from tpu_training.models.params import Params
from tpu_training.models.spec import IGNORED, DataSpec, Metric, Prepare, Task, mean
from tpu_training.models.step_context import next_seed

# The confusion of more classes is a picture too large to read.
_MOST_CLASSES = 100
# Beyond this loss the perplexity says nothing but that the model knows nothing.
_LARGEST_LOSS = 50.0


def count(which: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return how many of `which`, bool (batch, …), are true, int32."""
    whole = tf.reshape(tf.cast(weights, tf.int32), (-1, *[1] * (which.shape.rank - 1)))
    return tf.reduce_sum(tf.cast(which, tf.int32) * whole)


def add(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the sum of `values` (batch, …), float32."""
    each = tf.reshape(weights, (-1, *[1] * (values.shape.rank - 1)))
    return tf.reduce_sum(tf.cast(values, tf.float32) * each)


def confusion(
    targets: tf.Tensor, predicted: tf.Tensor, weights: tf.Tensor, classes: int
) -> tf.Tensor:
    """Count true and predicted classes (batch, …), as products of matrices: TPUs are made for them.

    Rows are true classes. The one-hot vector of an IGNORED class is zero, so it adds nothing.
    """
    if targets.shape.rank == 1:
        rows = tf.one_hot(targets, classes) * weights[:, None]
        pairs = tf.matmul(rows, tf.one_hot(predicted, classes), transpose_a=True)
        return tf.cast(pairs, tf.int32)
    true = tf.one_hot(tf.reshape(targets, (tf.shape(targets)[0], -1)), classes)
    found = tf.one_hot(tf.reshape(predicted, (tf.shape(predicted)[0], -1)), classes)
    # Example by example: float32 counts the elements of one exactly, but not those of a batch.
    each = tf.matmul(true, found, transpose_a=True) * weights[:, None, None]
    return tf.reduce_sum(tf.cast(each, tf.int32), axis=0)


def right(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Count the places whose greatest logit is their class's, and all that have a class."""
    *_, found = _scores(logits, targets)
    return tf.stack([count(found > 0, weights), count(targets >= 0, weights)])


def class_counts(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, classes: int
) -> tf.Tensor:
    """Count by class: right answers, predictions, true labels; (3, classes)."""
    found = tf.argmax(logits, axis=-1, output_type=tf.int32)
    pairs = confusion(targets, found, weights, classes)
    return tf.stack(
        [tf.linalg.diag_part(pairs), tf.reduce_sum(pairs, axis=0), tf.reduce_sum(pairs, axis=1)]
    )


def macro_f1(sums: Any) -> float:
    """Return the mean F1 of the classes that occur or are predicted."""
    right, predicted, actual = sums
    occurs = predicted + actual > 0
    return float(np.mean(2 * right[occurs] / (predicted + actual)[occurs])) if occurs.any() else 0.0


def mean_iou(sums: Any) -> float:
    """Return the mean intersection over union of the classes that occur or are predicted."""
    right, predicted, actual = sums
    union = predicted + actual - right
    occurs = union > 0
    return float(np.mean(right[occurs] / union[occurs])) if occurs.any() else 0.0


# Classification: one class for each example.


def softmax_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, classes) and labels (batch,) to the loss of each example, (batch,).

    Label smoothing (Szegedy et al., arXiv:1512.00567) spreads part of each label over all classes.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not params.label_smoothing:
        return losses
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    return (1.0 - params.label_smoothing) * losses + params.label_smoothing * spread


def class_metrics(spec: DataSpec) -> Sequence[Metric]:
    """Count right answers; true and predicted classes as well, unless there are many."""

    def pairs(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        predicted = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return confusion(targets, predicted, weights, spec.classes)

    found = [Metric("accuracy", right, mean)]
    if spec.classes <= _MOST_CLASSES:
        found.append(Metric("confusion", pairs, in_training=False))
    return found


def class_predictions(logits: tf.Tensor) -> Mapping[str, tf.Tensor]:
    """Return probabilities, float32 (batch, …, classes), and top classes, int32 (batch, …)."""
    probabilities = tf.nn.softmax(logits)
    classes = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
    return {"probabilities": probabilities, "classes": classes}


# Labels: any number of them for each example. A label is a yes where its logit is above 0.


def label_losses(logits: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits and targets (batch, labels), 1 for yes, to the mean cross-entropy of the labels.

    Label smoothing moves the targets towards one half.
    """
    smoothing = params.label_smoothing
    smoothed = tf.cast(targets, tf.float32) * (1.0 - smoothing) + 0.5 * smoothing
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=smoothed, logits=logits), axis=-1
    )


def exact_matches(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Count the examples all of whose answers are right, and all."""
    same = tf.reduce_all(tf.equal(logits > 0, targets > 0), axis=-1)
    return tf.stack([count(same, weights), count(tf.ones_like(same), weights)])


def answers(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Count for each label yes that is right, yes that is wrong, no that is wrong: (3, labels)."""
    yes, true, rows = logits > 0, targets > 0, tf.cast(weights, tf.int32)[:, None]
    kinds = [yes & true, yes & ~true, ~yes & true]
    return tf.stack([tf.reduce_sum(tf.cast(kind, tf.int32) * rows, axis=0) for kind in kinds])


def label_micro_f1(sums: Any) -> float:
    """Return F1 over all answers; 0 without any yes."""
    right, wrong, missed = sums.sum(axis=1)
    return float(2 * right / max(2 * right + wrong + missed, 1))


def label_macro_f1(sums: Any) -> float:
    """Return the mean of the labels' F1; that of a label without any yes is 0."""
    right, wrong, missed = sums
    return float(np.mean(2 * right / np.maximum(2 * right + wrong + missed, 1)))


# Regression: numbers for each example.


def squared_errors(outputs: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map outputs and targets (batch, numbers) to the mean squared error of each example."""
    return tf.reduce_mean(tf.square(outputs - targets), axis=-1)


def absolute(outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Add up each example's mean absolute error, and count the examples."""
    errors = tf.reduce_mean(tf.abs(outputs - targets), axis=-1)
    return add(errors, weights), count(weights > 0, weights)


def moments(outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Add up squared errors, squares and values of each number, and count the examples.

    In float64: the difference of large squares is all that is left of a small variance.
    """
    true, found, rows = (tf.cast(x, tf.float64) for x in (targets, outputs, weights[:, None]))
    sums = (tf.square(found - true), tf.square(true), true)
    return *(tf.reduce_sum(rows * each, axis=0) for each in sums), count(weights > 0, weights)


def determination(sums: Any) -> float:
    """Return R², the mean over the numbers: 1 less the part of the variance that is left."""
    errors, squares, total, examples = sums
    spread = squares - total**2 / max(int(examples), 1)
    return float(np.mean(1.0 - errors / np.maximum(spread, np.finfo(np.float64).tiny)))


# A class for each place: token, pixel, or next token of a language model.


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Return the cross-entropy at each place, float32 like `targets`; 0 where it is IGNORED."""
    each, spread, _ = _scores(logits, targets)
    if smoothing:
        each = (1.0 - smoothing) * each + smoothing * spread
    return tf.where(tf.not_equal(targets, IGNORED), each, 0.0)


def _scores(logits: tf.Tensor | layers.LogitPieces, targets: tf.Tensor) -> Sequence[tf.Tensor]:
    """Return for each place its cross-entropy, the mean of all classes', and 1 where it is right.

    All are float32 like `targets`; a program leaves out what nothing needs.
    """
    if isinstance(logits, layers.LogitPieces):
        return logits.score(_scores, targets)  # type: ignore[no-any-return]
    logits = tf.cast(logits, tf.float32)
    # The loss takes no class -1, not even where its result is dropped.
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(targets, 0), logits)
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    found = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), targets)
    return each, spread, tf.cast(found, tf.float32)


def place_losses(logits: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, …, classes) and targets (batch, …) to the mean of each example's places.

    A label of an image or a tagged text counts by the example, the tokens of a language model each:
    see `counted_tokens`.
    """
    losses = cross_entropy(logits, targets, params.label_smoothing)
    counted = tf.cast(tf.not_equal(targets, IGNORED), tf.float32)
    axes = list(range(1, losses.shape.rank))
    total = tf.reduce_sum(losses * counted, axis=axes)
    return total / tf.maximum(tf.reduce_sum(counted, axis=axes), 1.0)


def counted_tokens(targets: tf.Tensor) -> tf.Tensor:
    """Return the number of targets (batch, length) that count in each example, float32 (batch,)."""
    return tf.reduce_sum(tf.cast(tf.not_equal(targets, IGNORED), tf.float32), axis=1)


def place_metrics(name: str, value: Any, spec: DataSpec) -> Sequence[Metric]:
    """Count right places, and by class what `value` turns into the metric called `name`."""
    counts = partial(class_counts, classes=spec.classes)
    return [Metric("accuracy", right, mean), Metric(name, counts, value, in_training=False)]


def token_spec(spec: DataSpec) -> DataSpec:
    """Ask the model for a row of logits for each token."""
    return dataclasses.replace(spec, outputs=(*spec.shape, spec.classes))


def pixel_spec(spec: DataSpec) -> DataSpec:
    """Ask the model for a row of logits for each pixel."""
    return dataclasses.replace(spec, outputs=(*specs.image_shape(spec)[:2], spec.classes))


def token_loss_sums(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Add up the losses of all tokens that count, and their number."""
    counted = count(tf.not_equal(targets, IGNORED), weights)
    return add(cross_entropy(logits, targets), weights), counted


def perplexity(sums: Any) -> float:
    """Return e to the mean loss of a token."""
    return math.exp(min(mean(sums), _LARGEST_LOSS))


# Language models make their targets from the features.


def next_token_spec(spec: DataSpec) -> DataSpec:
    """Give the model all tokens but the last, and ask for logits at each."""
    length = specs.text_length(spec) - 1
    outputs = (length, spec.vocabulary)
    return dataclasses.replace(
        spec, shape=(length,), outputs=outputs, targets=specs.NOTHING, causal=True
    )


def shift_tokens(spec: DataSpec) -> Prepare:
    """Return what makes inputs and targets of the stored tokens; padding is no target."""

    def shift(
        features: tf.Tensor, targets: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        following = features[:, 1:]
        counts = following != spec.padding
        if spec.start != spec.end:
            # No text leads to the beginning of the next one.
            counts &= following != spec.start
        return features[:, :-1], tf.where(counts, following, IGNORED)

    return shift


# BERT's masking (arXiv:1810.04805, section 3.1): 15 % of the tokens are targets; of these 80 % are
# hidden, 10 % become any token and 10 % stay.
_CHOSEN, _HIDDEN, _OTHER = 0.15, 0.8, 0.1
_BITS = 24


def hidden_token_spec(spec: DataSpec) -> DataSpec:
    """Ask for logits at each token; one more id than the vocabulary's stands for a hidden one."""
    outputs, more = (specs.text_length(spec), spec.vocabulary), spec.vocabulary + 1
    return dataclasses.replace(spec, outputs=outputs, vocabulary=more, targets=specs.NOTHING)


def hide_tokens(spec: DataSpec) -> Prepare:
    """Return what hides tokens: others in each step, but the same ones in each evaluation."""

    def hide(
        features: tf.Tensor, targets: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        shape = features.shape
        if training:
            chance, kind = (tf.random.stateless_uniform(shape, next_seed()) for _ in range(2))
            other = tf.random.stateless_uniform(
                shape, next_seed(), minval=0, maxval=spec.vocabulary - 1, dtype=tf.int32
            )
        else:
            chance, kind, place = (_drawn_from(features, number) for number in range(3))
            other = tf.cast(place * (spec.vocabulary - 1), tf.int32)
        other += tf.cast(other >= spec.padding, tf.int32)
        chosen = (chance < _CHOSEN) & (features != spec.padding)
        if spec.start >= 0:
            # The token that begins a text is never hidden or drawn.
            chosen &= features != spec.start
            other = tf.where(other == spec.start, features, other)
        shown = tf.where(kind < _HIDDEN, spec.vocabulary, features)
        shown = tf.where((kind >= _HIDDEN) & (kind < _HIDDEN + _OTHER), other, shown)
        return tf.where(chosen, shown, features), tf.where(chosen, features, IGNORED)

    return hide


def _drawn_from(features: tf.Tensor, number: int) -> tf.Tensor:
    """Draw 0 … 1 for each token from the example alone, whatever batch and replica it is in.

    A polynomial of the tokens modulo 2**32, mixed as in MurmurHash3's last step.
    """
    length = features.shape[1]
    powers = tf.constant([_signed(31**place) for place in range(length)])
    example = tf.reduce_sum(features * powers, axis=1, keepdims=True)
    places = tf.constant([[_signed(0x9E3779B9 * (3 * p + number + 1)) for p in range(length)]])
    mixed = example + places
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        high = tf.bitwise.right_shift(tf.bitcast(mixed, tf.uint32), tf.constant(shift, tf.uint32))
        mixed = tf.bitwise.bitwise_xor(mixed, tf.bitcast(high, tf.int32)) * _signed(factor)
    low = tf.bitwise.bitwise_and(mixed, (1 << _BITS) - 1)
    return tf.cast(low, tf.float32) / (1 << _BITS)


def _signed(number: int) -> int:
    """Return `number` modulo 2**32 as an int32, which wraps around as MurmurHash3 wants."""
    return (number + 2**31) % 2**32 - 2**31


_LANGUAGE_MODEL: Mapping[str, Any] = {
    "losses": place_losses,
    "metrics": lambda spec: [
        Metric("token_loss", token_loss_sums, mean, in_training=False),
        Metric("perplexity", token_loss_sums, perplexity, in_training=False),
        Metric("accuracy", right, mean),
    ],
    "any_targets": True,
    "best": "token_loss",
    "shares": counted_tokens,
}
_ALL = (
    Task(
        "classification",
        softmax_cross_entropy,
        class_metrics,
        specs.CLASS,
        predictions=class_predictions,
        best="accuracy",
        higher_is_better=True,
        gives_classes=True,
    ),
    Task(
        "multi_label",
        label_losses,
        lambda spec: [
            Metric("exact_match", exact_matches, mean),
            Metric("micro_f1", answers, label_micro_f1),
            Metric("macro_f1", answers, label_macro_f1, in_training=False),
        ],
        specs.LABELS,
        predictions=lambda logits: {"probabilities": tf.nn.sigmoid(logits)},
        best="micro_f1",
        higher_is_better=True,
    ),
    Task(
        "regression",
        squared_errors,
        lambda spec: [
            Metric("mae", absolute, mean),
            Metric("r2", moments, determination, in_training=False),
        ],
        specs.NUMBERS,
    ),
    Task(
        "token_classification",
        place_losses,
        partial(place_metrics, "macro_f1", macro_f1),
        specs.TOKEN_CLASSES,
        model_spec=token_spec,
        predictions=class_predictions,
        best="macro_f1",
        higher_is_better=True,
    ),
    Task(
        "segmentation",
        place_losses,
        partial(place_metrics, "mean_iou", mean_iou),
        specs.MASK,
        model_spec=pixel_spec,
        predictions=class_predictions,
        best="mean_iou",
        higher_is_better=True,
    ),
    Task("causal_lm", model_spec=next_token_spec, prepare=shift_tokens, **_LANGUAGE_MODEL),
    Task("masked_lm", model_spec=hidden_token_spec, prepare=hide_tokens, **_LANGUAGE_MODEL),
)
TASKS = {task.name: dataclasses.replace(task, own=False) for task in _ALL}
