"""What layers need of the step that they are called in: random seeds, and a place for statistics.

It is there while a step is traced, in the thread that traces it: each replica has its own.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import tensorflow as tf

_local = threading.local()


@dataclass
class StepContext:
    """`seed` is that of this step, replica and part of the batch, int32 (2,).

    `statistics` are those of the batch; `averages` are the variables that follow them, each with
    its momentum.
    """

    seed: tf.Tensor
    seeds_given: int = 0
    averages: list[tuple[tf.Variable, float]] = field(default_factory=list)
    statistics: list[tf.Tensor] = field(default_factory=list)


@contextmanager
def step_context(seed: tf.Tensor) -> Iterator[StepContext]:
    """Enter the step with `seed`."""
    _local.context = StepContext(seed)
    try:
        yield _local.context
    finally:
        del _local.context


def next_seed() -> tf.Tensor:
    """A seed, int32 (2,), for tf.random.stateless_…: another for each call in a step.

    The same job, step and replica gives the same ones again, so that a resumed job goes on as if it
    had never been interrupted.
    """
    context = _current()
    context.seeds_given += 1
    return tf.random.experimental.stateless_fold_in(context.seed, context.seeds_given)


def record_statistic(average: tf.Variable, value: tf.Tensor, momentum: float) -> None:
    """Have `average` follow `value`, the statistic of this replica's part of the batch.

    The training loop takes the mean of `value` over parts and replicas, and then once a step
    average = momentum * average + (1 - momentum) * value: all copies of `average` stay alike.
    """
    context = _current()
    context.averages.append((average, momentum))
    context.statistics.append(value)


def update_averages(
    averages: Sequence[tuple[tf.Variable, float]], values: Sequence[tf.Tensor]
) -> None:
    """Move what record_statistic named towards `values`, the same in every replica."""
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
        raise RuntimeError("layers that behave differently in training need the training loop")
    return context
