"""Build graphs without AutoGraph, which would add a second to a job's start.

AutoGraph compiles Python's control flow over tensors, function by function. This package uses none;
a user's own model may.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

Values = TypeVar("Values")


def repeat(
    count: int | tf.Tensor,
    start: Values,
    step: Callable[[tf.Tensor, Values], Values],
) -> Values:
    """Apply `step(number, values)` to `start` `count` times, in one loop on the device."""

    def body(number: tf.Tensor, values: Values) -> tuple[tf.Tensor, Values]:
        return number + 1, step(number, values)

    first = (tf.constant(0), start)
    result: Values = tf.while_loop(lambda number, _: number < count, body, first)[1]
    return result


def with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with AutoGraph enabled in it, whatever calls it."""
    convert: Callable[..., Any] = tf.autograph.to_graph(_call)

    def converted(*arguments: Any, **options: Any) -> Any:
        return convert(function, arguments, options)

    return converted


def _call(function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    return function(*arguments, **options)
