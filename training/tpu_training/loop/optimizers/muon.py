"""Muon, which steps by an orthogonal matrix near the momentum's."""

from typing import Any

import tensorflow as tf

from tpu_training.loop.optimizers.adam import Adam
from tpu_training.loop.optimizers.base import Change, is_weight

# The iteration's polynomial and number of steps (https://kellerjordan.github.io/posts/muon), and
# the factor that makes its steps as long as Adam's (arXiv:2502.16982), as in Keras.
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_LENGTH = 0.2
_EPSILON = 1e-7


class Muon(Adam):
    """Momentum orthogonalised by Newton-Schulz, for matrices; Adam for all else.

    As Keras does, embeddings, convolutions, biases and normalisations are Adam's; and so is the
    output layer, as its author writes (https://kellerjordan.github.io/posts/muon).
    """

    def __init__(self, *arguments: Any, head: str = "", **others: Any) -> None:
        """Let Adam have the matrix at the path `head`."""
        self._head = head
        super().__init__(*arguments, **others)

    def names_of(self, path: str, variable: tf.Variable) -> tuple[str, ...]:
        """Return the slots of the `variable` at `path`: what is orthogonalised has one."""
        matrix = len(variable.shape) == 2 and is_weight(path, variable)
        adams = not matrix or path == self._head or is_embedding(path)
        return self.slot_names if adams else ("first",)

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Update one copy, with Nesterov's momentum."""
        if len(change.slots) > 1:
            super().update(variable, change)
            return
        (first,), gradient, rate, _, decay, _ = change
        momentum = first.assign(self._beta_1 * first + gradient)
        direction = orthogonalise(gradient + self._beta_1 * momentum)
        direction *= _LENGTH * max(variable.shape) ** 0.5
        if decay:
            direction += decay * variable
        variable.assign_sub(rate * direction)


def orthogonalise(matrix: tf.Tensor) -> tf.Tensor:
    """Return nearly the orthogonal matrix that is nearest to `matrix`."""
    rows, columns = matrix.shape
    x = tf.transpose(matrix) if rows > columns else matrix
    x /= tf.norm(x) + _EPSILON
    a, b, c = _POLYNOMIAL
    for _ in range(_ITERATIONS):
        square = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * square + c * tf.matmul(square, square), x)
    return tf.transpose(x) if rows > columns else x


def is_embedding(path: str) -> bool:
    """Return whether `path` is that of an embedding, of Keras or of models/layers.py."""
    return "embed" in path.lower() or path.rpartition("/")[2] == "table"
