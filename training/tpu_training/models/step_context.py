"""Give layers access to the current step: random seeds, and a place for batch statistics.

The context exists while a step is traced, in the tracing thread; each replica has its own.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import tensorflow as tf

_local = threading.local()


@dataclass
class StepContext:
    """The context of a step on one replica and part of the batch.

    Attributes:
        seed: The seed, int32 (2,).
        seeds_given: How many seeds layers have taken.
        averages: The moving averages to update, each with its momentum.
        statistics: The batch statistics that they follow.
    """

    seed: tf.Tensor
    seeds_given: int = 0
    averages: list[tuple[tf.Variable, float]] = field(default_factory=list)
    statistics: list[tf.Tensor] = field(default_factory=list)


@contextmanager
def step_context(seed: tf.Tensor) -> Iterator[StepContext]:
    """Provide the context of a step with `seed`."""
    _local.context = StepContext(seed)
    try:
        yield _local.context
    finally:
        del _local.context


def next_seed() -> tf.Tensor:
    """Return a seed, int32 (2,), for tf.random.stateless_…; each call in a step gives another.

    They depend only on the job's seed, the step and the replica, so that a resumed job repeats
    them.
    """
    context = _current()
    context.seeds_given += 1
    return tf.random.experimental.stateless_fold_in(context.seed, context.seeds_given)


def record_statistic(average: tf.Variable, value: tf.Tensor, momentum: float) -> None:
    """Let `average` follow `value`, the statistic of this replica's part of the batch.

    Once per step the training loop takes the mean of `value` over parts and replicas and sets
    average = momentum * average + (1 - momentum) * value, so that all copies stay equal.
    """
    context = _current()
    context.averages.append((average, momentum))
    context.statistics.append(value)


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
        raise RuntimeError("next_seed and record_statistic work only inside the training loop")
    return context
