"""A small BERT-style encoder (arXiv:1810.04805), or with a causal mask a GPT-style decoder."""

from functools import partial

import tensorflow as tf

from tpu_training.models.layers import Dense, Embedding, LayerNorm, SelfAttention, dropout
from tpu_training.models.params import NO_REMAT
from tpu_training.models.step_context import rematerialised

_FEED_FORWARD = 4


class Bert(tf.Module):  # type: ignore[misc]
    """Token and position embeddings, encoder layers, and a head on each token or on their mean."""

    def __init__(
        self,
        length: int,
        vocabulary: int,
        outputs: int,
        *,
        layers: int,
        size: int,
        heads: int,
        dropout_rate: float,
        precision: str,
        seed: int,
        per_token: bool = False,
        causal: bool = False,
        remat: str = NO_REMAT,
    ) -> None:
        """Build for `length` token ids, with vectors of `size`, a multiple of `heads`.

        `causal` hides from each token those after it.
        """
        super().__init__()
        self._dropout = dropout_rate
        self._per_token = per_token
        self._causal = causal
        self._remat = remat
        self._dtype = tf.as_dtype(precision)
        self.tokens = Embedding(vocabulary, size, seed)
        self.positions = Embedding(length, size, seed + 1)
        self.norm = LayerNorm(size)
        # Each layer takes four seeds.
        self.layers = [
            EncoderLayer(size, heads, dropout_rate, seed + 2 + 4 * index) for index in range(layers)
        ]
        self.head = Dense(size, outputs, seed + 2 + 4 * layers)

    def __call__(self, ids: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Map int32 token ids (batch, length), 0 for padding, to float32 numbers."""
        present = ids > 0
        x = self.norm(self.tokens(ids) + self.positions.table)
        x = dropout(tf.cast(x, self._dtype), self._dropout, training)
        for layer in self.layers:
            encode = partial(layer, present=present, training=training, causal=self._causal)
            x = rematerialised(encode, self._remat, training)(x)
        if self._per_token:
            return tf.cast(self.head(x), tf.float32)
        weights = tf.cast(present, tf.float32)[:, :, None]
        total = tf.reduce_sum(tf.cast(x, tf.float32) * weights, axis=1)
        mean = total / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0)
        return self.head(mean)


class EncoderLayer(tf.Module):  # type: ignore[misc]
    """Self-attention, then two dense layers; each block's residual sum is normalised."""

    def __init__(self, size: int, heads: int, dropout_rate: float, seed: int) -> None:
        """Build for vectors of `size`."""
        super().__init__()
        self._dropout = dropout_rate
        self.attention = SelfAttention(size, heads, seed)
        self.attention_norm = LayerNorm(size)
        self.widen = Dense(size, _FEED_FORWARD * size, seed + 2)
        self.narrow = Dense(_FEED_FORWARD * size, size, seed + 3)
        self.feed_forward_norm = LayerNorm(size)

    def __call__(
        self, x: tf.Tensor, present: tf.Tensor, training: bool, causal: bool = False
    ) -> tf.Tensor:
        """Map (batch, length, size); `present` (batch, length) is False at padding."""
        attended = self.attention(x, present, causal)
        x = self.attention_norm(x + dropout(attended, self._dropout, training))
        wide = tf.nn.gelu(self.widen(x), approximate=True)
        return self.feed_forward_norm(x + dropout(self.narrow(wide), self._dropout, training))
