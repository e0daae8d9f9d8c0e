"""A user's tf.data function, `def dataset(split, context)` in a Python file: found and called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_training.errors import DataError, InputError
from tpu_training.errors.user_lines import user_line
from tpu_training.models.registry import load_file

if TYPE_CHECKING:
    import tensorflow as tf


NAME = "dataset"
SUFFIX = ".py"


@dataclass(frozen=True)
class Context:
    """What a data function may depend on.

    Attributes:
        seed: For what the function draws at random: in `data convert` the value of --seed, in a
            training an int64 tensor, another one in each epoch.
    """

    seed: Any


@dataclass(frozen=True)
class DataFunction:
    """The function, FILE:LINE of it, and the file's `class_names`, if it has some."""

    function: Callable[[str, Context], Any]
    place: str
    class_names: tuple[str, ...] = ()

    def __call__(self, split: str, seed: int | tf.Tensor) -> tf.data.Dataset | None:
        """Return the examples of `split`, or None if there are none.

        Raises:
            InputError: The function failed; the message names its line.
            DataError: It returned something else.
        """
        return self._checked(lambda: self.function(split, Context(seed)))

    def in_graph(self, split: str, seed: tf.Tensor) -> tf.data.Dataset:
        """Return the same as a part of the graph that is being traced, compiled by AutoGraph."""
        import tensorflow as tf

        function = self.function

        @tf.function(autograph=True)  # type: ignore[untyped-decorator]
        def rows(drawn: tf.Tensor) -> tf.data.Dataset:
            return function(split, Context(drawn))

        return self._checked(lambda: rows(seed))

    def _checked(self, call: Callable[[], Any]) -> tf.data.Dataset:
        import tensorflow as tf

        try:
            rows = call()
        except Exception as error:
            line, message = user_line(error) or self.place, str(error).strip()
            # AutoGraph's message has the user's stack first.
            reason = message.splitlines()[-1].strip() if "in user code:" in message else message
            name = type(error).__name__
            prefix = "" if reason.startswith(f"{name}: ") else f"{name}: "
            raise InputError(f"{line}: {prefix}{reason}") from error
        if not (rows is None or isinstance(rows, tf.data.Dataset)):
            raise DataError(
                f"{self.place}: returned a {type(rows).__name__}, expected a tf.data.Dataset"
            )
        return rows


def is_function(data: str) -> bool:
    """Return whether --data names a file with a data function."""
    return data.endswith(SUFFIX)


def load_function(path: str, flag: str) -> DataFunction:
    """Return the function in the file that `--flag` names. Raises InputError if it has none."""
    file = load_file(path, flag)
    function = getattr(file, NAME, None)
    if not callable(function):
        raise InputError(f"--{flag}={path}: lacks a function `{NAME}(split, context)`")
    place = f"{path}:{inspect.unwrap(function).__code__.co_firstlineno}"
    return DataFunction(function, place, tuple(map(str, getattr(file, "class_names", ()))))


def is_endless(rows: tf.data.Dataset) -> bool:
    """Return whether `rows` repeat for ever."""
    import tensorflow as tf

    return bool(rows.cardinality() == tf.data.INFINITE_CARDINALITY)


ENDLESS = "never ends; leave out repeat(), the training reads it again in each epoch"
