"""Give layers access to the current step: random seeds, and a place for batch statistics.

The context exists while a step is traced, in the tracing thread; each replica has its own.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tpu_training.models.params import NO_REMAT

# Tensors -> each summed over all replicas.
Sum = Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]

_local = threading.local()


@dataclass
class StepContext:
    """The context of a step on one replica and part of the batch.

    Attributes:
        seed: The seed, int32 (2,).
        seeds_given: How many seeds layers have taken.
        averages: The moving averages to update, each with its momentum.
        statistics: The batch statistics that they follow.
        frozen: The ids of the variables that must not change.
        sum_all: Sums each of several tensors over all replicas; gradients don't flow through it.
        penalties: What layers add to the loss.
        step: The number of the step, int64, from 0.
        replica: The number of the replica, int32, from 0.
        replicas: How many there are.
    """

    seed: tf.Tensor
    frozen: frozenset[int] = frozenset()
    sum_all: Sum = list
    step: tf.Tensor | int = 0
    replica: tf.Tensor | int = 0
    replicas: int = 1
    seeds_given: int = 0
    averages: list[tuple[tf.Variable, float]] = field(default_factory=list)
    statistics: list[tf.Tensor] = field(default_factory=list)
    penalties: list[tf.Tensor] = field(default_factory=list)

    def sum(self, values: Any) -> Any:
        """Return each tensor of a tree summed over all replicas; gradients flow through."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def sum_up(*parts: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            return list(self.sum_all(parts)), lambda *upstream: list(self.sum_all(upstream))

        flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(values)]
        floats = [at for at, each in enumerate(flat) if each.dtype.is_floating]
        # Whole numbers have no gradient; each is summed alone, as a strategy wants it.
        summed = {at: self.sum_all([each])[0] for at, each in enumerate(flat) if at not in floats}
        if floats:
            found = tf.nest.flatten(sum_up(*(flat[at] for at in floats)))
            # TensorFlow 2.12 can't compile zip with strict.
            summed |= {at: found[number] for number, at in enumerate(floats)}
        return tf.nest.pack_sequence_as(values, [summed[at] for at in range(len(flat))])

    def gather(self, values: Any) -> Any:
        """Return each tensor (examples, …) of a tree as that of all replicas, in their order.

        Gradients flow through, to the replica that a row comes from. Row i of this replica becomes
        row `replica` * examples + i.
        """

        def placed(rows: tf.Tensor) -> tf.Tensor:
            # Booleans can't be summed.
            rows = tf.cast(rows, tf.int32) if rows.dtype == tf.bool else rows
            here = tf.reshape(tf.range(self.replicas), (-1, *[1] * rows.shape.rank))
            # No product: 0 times infinity would be NaN on all replicas.
            return tf.where(here == self.replica, rows[tf.newaxis], tf.zeros((), rows.dtype))

        return tf.nest.map_structure(
            lambda every, own: tf.cast(tf.reshape(every, (-1, *every.shape[2:])), own.dtype),
            self.sum(tf.nest.map_structure(placed, values)),
            values,
        )

    def next_seed(self) -> tf.Tensor:
        """Return a seed for tf.random.stateless_…, another one with each call; see next_seed."""
        self.seeds_given += 1
        return tf.random.experimental.stateless_fold_in(self.seed, self.seeds_given)


@contextmanager
def step_context(
    seed: tf.Tensor, frozen: frozenset[int] = frozenset(), sum_all: Sum = list, **place: Any
) -> Iterator[StepContext]:
    """Provide the context of a step with `seed` that leaves the variables in `frozen` alone.

    `place` has the other attributes of the StepContext: the step and its replica.
    """
    _local.context = StepContext(seed, frozen, sum_all, **place)
    try:
        yield _local.context
    finally:
        del _local.context


def next_seed() -> tf.Tensor:
    """Return a seed, int32 (2,), for tf.random.stateless_…; each call in a step gives another.

    They depend only on the job's seed, the step and the replica, so that a resumed job repeats
    them.
    """
    return _current().next_seed()


def rematerialised(block: Callable[[Any], Any], remat: str, training: bool) -> Callable[[Any], Any]:
    """Return `block`, which maps a tensor to one; in training with `remat` it is computed twice.

    The second time, which may be after the context has ended, it draws the same random numbers, and
    what it records is forgotten.
    """
    if remat == NO_REMAT or not training:
        return block
    context = _current()
    begun: list[int] = []

    def call(x: Any) -> Any:
        if not begun:
            begun.append(context.seeds_given)
            return block(x)
        before = getattr(_local, "context", None)
        _local.context = dataclasses.replace(
            context, seeds_given=begun[0], averages=[], statistics=[], penalties=[]
        )
        try:
            return block(x)
        finally:
            _local.context = before

    return tf.recompute_grad(call)  # type: ignore[no-any-return]


def all_replicas(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return the means of `values` over all replicas; gradients flow through them."""
    *totals, replicas = _current().sum([*values, tf.ones(())])
    return [total / replicas for total in totals]


def split_weights(labels: Any) -> tuple[Any, Any]:
    """Return targets and the weights of the examples, by which their losses are multiplied."""
    return labels if isinstance(labels, tuple) else (labels, 1.0)


def is_frozen(variable: tf.Variable) -> bool:
    """Return whether `variable` must keep its value in this step."""
    return id(variable) in _current().frozen


def record_statistic(average: tf.Variable, value: tf.Tensor, momentum: float) -> None:
    """Let `average` follow `value`, the statistic of this replica's part of the batch.

    Once per step the training loop takes the mean of `value` over parts and replicas and sets
    average = momentum * average + (1 - momentum) * value, so that all copies stay equal.
    """
    context = _current()
    if id(average) in context.frozen:
        return
    context.averages.append((average, momentum))
    context.statistics.append(value)


def record_penalty(value: tf.Tensor) -> None:
    """Add `value`, a number, to the mean loss of this replica's part of the batch."""
    _current().penalties.append(value)


def update_averages(
    averages: Sequence[tuple[tf.Variable, float]], values: Sequence[tf.Tensor]
) -> None:
    """Move the recorded averages towards `values`, which are equal in every replica."""
    if not averages:
        return

    def update(average: tf.Variable, momentum: float, value: tf.Tensor) -> None:
        average.assign(momentum * average + (1.0 - momentum) * value)

    def update_all(strategy: tf.distribute.Strategy, new: Sequence[tf.Tensor]) -> None:
        for index, value in enumerate(new):
            average, momentum = averages[index]
            strategy.extended.update(average, update, args=(momentum, value), group=True)

    tf.distribute.get_replica_context().merge_call(update_all, args=(list(values),))


def _current() -> StepContext:
    context: StepContext | None = getattr(_local, "context", None)
    if context is None:
        raise RuntimeError(
            "next_seed, is_frozen and record_statistic work only inside the training loop"
        )
    return context
