"""Muon, which steps by an orthogonal matrix near the momentum's."""

import tensorflow as tf

from tpu_training.loop.optimizers.adam import Adam
from tpu_training.loop.optimizers.base import Change

# The iteration's polynomial and number of steps (https://kellerjordan.github.io/posts/muon), and
# the factor that makes its steps as long as Adam's (arXiv:2502.16982), as in Keras.
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_LENGTH = 0.2
_EPSILON = 1e-7


class Muon(Adam):
    """Momentum orthogonalised by Newton-Schulz, for matrices; Adam for all else.

    As Keras does, embeddings, convolutions, biases and normalisations are Adam's.
    """

    def names_of(self, variable: tf.Variable) -> tuple[str, ...]:
        """Return the slots of `variable`: a matrix has no second moment."""
        return ("first",) if _is_matrix(variable) else self.slot_names

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Update one copy, with Nesterov's momentum."""
        if not _is_matrix(variable):
            super().update(variable, change)
            return
        (first,), gradient, rate, _ = change
        momentum = first.assign(self._beta_1 * first + gradient)
        direction = orthogonalise(gradient + self._beta_1 * momentum)
        direction *= _LENGTH * max(variable.shape) ** 0.5
        if decay := self.decay(variable):
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


def _is_matrix(variable: tf.Variable) -> bool:
    # `table` is what layers.Embedding calls its only variable.
    return len(variable.shape) == 2 and "table" not in variable.name
