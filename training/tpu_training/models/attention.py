"""Layers of text models: embeddings, self-attention, dropout."""

import tensorflow as tf

from tpu_training.models.layers import Dense, random_normal
from tpu_training.models.step_context import next_seed

# BERT's initialisation (arXiv:1810.04805, its published code).
_DEVIATION = 0.02
# Added to the scores of padding before softmax; finite, so that a row of only padding stays finite.
_MASKED = -1e9


class Embedding(tf.Module):  # type: ignore[misc]
    """A table of vectors, looked up by id."""

    def __init__(self, rows: int, size: int, seed: int) -> None:
        """Initialise `rows` vectors of `size` numbers."""
        super().__init__()
        self.table = tf.Variable(random_normal((rows, size), _DEVIATION, seed), name="table")

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Map int32 ids (…) to float32 vectors (…, size)."""
        return tf.gather(self.table, ids)


class SelfAttention(tf.Module):  # type: ignore[misc]
    """Multi-head attention of a sequence to itself (Vaswani et al., arXiv:1706.03762)."""

    def __init__(self, size: int, heads: int, seed: int) -> None:
        """Initialise for vectors of `size`, split over `heads`."""
        super().__init__()
        self._size = size
        self._heads = heads
        self.project = Dense(size, 3 * size, seed)
        self.combine = Dense(size, size, seed + 1)

    def __call__(self, x: tf.Tensor, present: tf.Tensor, causal: bool = False) -> tf.Tensor:
        """Map (batch, length, size); `present` (batch, length) is False at padding.

        With `causal` each place attends to itself and those before it.
        """
        length, width = x.shape[1], self._size // self._heads
        mixed = tf.reshape(self.project(x), (-1, length, 3, self._heads, width))
        query, key, value = tf.unstack(tf.transpose(mixed, (2, 0, 3, 1, 4)))
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) * width**-0.5
        scores += tf.where(present, 0.0, _MASKED)[:, None, None, :]
        if causal:
            places = tf.range(length)
            scores += tf.where(places[:, None] >= places, 0.0, _MASKED)
        weights = tf.cast(tf.nn.softmax(scores), x.dtype)
        heads = tf.transpose(tf.matmul(weights, value), (0, 2, 1, 3))
        return self.combine(tf.reshape(heads, (-1, length, self._size)))


def dropout(x: tf.Tensor, rate: float, training: bool) -> tf.Tensor:
    """In training, drop each number with probability `rate`; keep the expected value."""
    if not training or rate == 0:
        return x
    return tf.nn.experimental.stateless_dropout(x, rate=rate, seed=next_seed())
