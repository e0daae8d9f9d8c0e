"""Basic layers on plain tf.Module, for models of this package and of users.

They are not Keras': TensorFlow 2.12 to 2.15 come with Keras 2, later ones with Keras 3, which names
and wraps variables differently, and a checkpoint of a built-in model must load under both. A user's
Keras 3 model is adapted as a whole; see keras.py.

Weights are float32; arithmetic uses the type of the input.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tpu_training.models.step_context import all_replicas, is_frozen, next_seed, record_statistic

_HALF_RANGE = 127.5


class Dense(tf.Module):  # type: ignore[misc]
    """A fully connected layer: x @ kernel + bias."""

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        """Initialise `inputs` x `outputs` weights as He et al. do (arXiv:1502.01852)."""
        super().__init__()
        self.kernel = tf.Variable(_he_normal((inputs, outputs), inputs, seed), name="kernel")
        self.bias = tf.Variable(tf.zeros(outputs), name="bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Map (…, inputs) to (…, outputs)."""
        return _dense(x, self.kernel, self.bias)


def _dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(x @ tf.cast(kernel, x.dtype), tf.cast(bias, x.dtype))


class Conv2D(tf.Module):  # type: ignore[misc]
    """A convolution that divides height and width by its stride."""

    def __init__(
        self, size: int, inputs: int, outputs: int, seed: int, stride: int = 1, bias: bool = True
    ) -> None:
        """Initialise a `size` x `size` kernel from `inputs` to `outputs` channels."""
        super().__init__()
        self.stride = stride
        shape = (size, size, inputs, outputs)
        self.kernel = tf.Variable(_he_normal(shape, size * size * inputs, seed), name="kernel")
        self.bias = tf.Variable(tf.zeros(outputs), name="bias") if bias else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Map (batch, height, width, inputs) to (batch, height, width, outputs)."""
        x = tf.nn.conv2d(x, tf.cast(self.kernel, x.dtype), strides=self.stride, padding="SAME")
        return x if self.bias is None else tf.nn.bias_add(x, tf.cast(self.bias, x.dtype))


def normalise(images: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Scale unsigned bytes to -1 ... 1 on the device, so that only bytes are transferred."""
    return tf.cast(tf.cast(images, tf.float32) / _HALF_RANGE - 1.0, dtype)


def random_normal(shape: tuple[int, ...], deviation: float, seed: int) -> tf.Tensor:
    """Draw first weights, which depend only on the seed and the version of TensorFlow.

    The algorithm is named, because TensorFlow's choice depends on the device that draws
    (https://www.tensorflow.org/api_docs/python/tf/random/Algorithm). Dropout, drawn in each step,
    is left to that choice: on a TPU Philox takes many times the work of the TPU's own generator.
    """
    return tf.random.stateless_normal(
        shape, seed=(seed, len(shape)), stddev=deviation, alg="philox"
    )


def _he_normal(shape: tuple[int, ...], inputs: int, seed: int) -> tf.Tensor:
    return random_normal(shape, (2.0 / inputs) ** 0.5, seed)


# Normalisation layers, with float32 statistics for inputs of any type.

_MOMENTUM = 0.9
_BATCH_EPSILON = 1e-5
_LAYER_EPSILON = 1e-12


class BatchNorm(tf.Module):  # type: ignore[misc]
    """Batch normalisation (Ioffe and Szegedy, arXiv:1502.03167) of images.

    In training each replica normalises by the statistics of its own part of the batch; evaluation,
    and training with frozen averages, uses moving averages of them. Where `synchronised` is set,
    training normalises by the statistics of all replicas' parts.
    """

    def __init__(self, channels: int, initial_scale: float = 1.0) -> None:
        """Initialise for `channels`; with `initial_scale` 0 a residual block starts as identity."""
        super().__init__()
        self.synchronised = False
        self.scale = tf.Variable(tf.fill((channels,), initial_scale), name="scale")
        self.offset = tf.Variable(tf.zeros(channels), name="offset")
        self.mean = tf.Variable(tf.zeros(channels), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones(channels), trainable=False, name="variance")

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        """Normalise (batch, height, width, channels); in training also update the averages."""
        if not training or is_frozen(self.mean):
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(
                x,
                self.scale,
                self.offset,
                mean=self.mean,
                variance=self.variance,
                epsilon=_BATCH_EPSILON,
                is_training=False,
            )
            return y
        if self.synchronised:
            return self._normalise_together(x)
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            x, self.scale, self.offset, epsilon=_BATCH_EPSILON, is_training=True
        )
        record_statistic(self.mean, mean, _MOMENTUM)
        record_statistic(self.variance, variance, _MOMENTUM)
        return y

    def _normalise_together(self, x: tf.Tensor) -> tf.Tensor:
        wide = tf.cast(x, tf.float32)
        moments = [tf.reduce_mean(values, axis=(0, 1, 2)) for values in (wide, tf.square(wide))]
        mean, square = all_replicas(moments)
        variance = tf.maximum(square - tf.square(mean), 0.0)
        record_statistic(self.mean, mean, _MOMENTUM)
        record_statistic(self.variance, variance, _MOMENTUM)
        y = (wide - mean) * tf.math.rsqrt(variance + _BATCH_EPSILON) * self.scale + self.offset
        return tf.cast(y, x.dtype)


class LayerNorm(tf.Module):  # type: ignore[misc]
    """Layer normalisation (Ba et al., arXiv:1607.06450) over the last axis."""

    def __init__(self, size: int) -> None:
        """Initialise for inputs (…, `size`)."""
        super().__init__()
        self.scale = tf.Variable(tf.ones(size), name="scale")
        self.offset = tf.Variable(tf.zeros(size), name="offset")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Normalise every vector to mean 0 and variance 1, then scale and shift it."""
        wide = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(wide, axes=-1, keepdims=True)
        y = (wide - mean) * tf.math.rsqrt(variance + _LAYER_EPSILON)
        return tf.cast(y * self.scale + self.offset, x.dtype)


# Layers of text models: embeddings, self-attention, dropout.

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


# A longer sequence's queries attend in blocks of at most half as many: the scores of 8,192 tokens
# would take 256 MiB for each head, example and layer.
_LONG = 1024


class SelfAttention(tf.Module):  # type: ignore[misc]
    """Multi-head attention of a sequence to itself (Vaswani et al., arXiv:1706.03762)."""

    def __init__(self, size: int, heads: int, seed: int) -> None:
        """Initialise for vectors of `size`, split over `heads`."""
        super().__init__()
        self._size = size
        self._heads = heads
        self.project = Dense(size, 3 * size, seed)
        self.combine = Dense(size, size, seed + 1)

    def __call__(self, x: tf.Tensor, texts: tf.Tensor, causal: bool = False) -> tf.Tensor:
        """Map (batch, length, size).

        `texts`, int32 (batch, length), has the number of each place's text: a place attends to
        those of the same number, with `causal` to itself and those before it. Padding has 0.
        """
        length, width = x.shape[1], self._size // self._heads
        mixed = tf.reshape(self.project(x), (-1, length, 3, self._heads, width))
        query, key, value = tf.unstack(tf.transpose(mixed, (2, 0, 3, 1, 4)))
        heads = _attend_in_blocks(query, key, value, texts, causal)
        heads = tf.transpose(heads, (0, 2, 1, 3))
        return self.combine(tf.reshape(heads, (-1, length, self._size)))


def _attend_in_blocks(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, texts: tf.Tensor, causal: bool
) -> tf.Tensor:
    """Map three of (batch, heads, length, width) to one.

    In blocks, a backward pass computes each block's scores again: no two blocks' are kept at once.
    """
    length, width = query.shape[2:]
    places = tf.range(length)

    def attend(
        own: tf.Tensor, at: tf.Tensor, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tf.Tensor:
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) * width**-0.5
        seen = own[:, :, None] == texts[:, None, :]
        if causal:
            seen &= at[:, None] >= places
        weights = tf.nn.softmax(scores + tf.where(seen, 0.0, _MASKED)[:, None])
        return tf.matmul(tf.cast(weights, value.dtype), value)

    if length <= _LONG:
        return attend(texts, places, query, key, value)
    count = -(-2 * length // _LONG)
    size = -(-length // count)

    def attend_from(block: tuple[tf.Tensor, ...]) -> tf.Tensor:
        own, at, query = block
        # It takes numbers with gradients alone.
        return tf.recompute_grad(partial(attend, own, at))(query, key, value)

    heads = tf.map_fn(
        attend_from,
        (_blocks(texts, 1, count), _blocks(places, 0, count), _blocks(query, 2, count)),
        fn_output_signature=tf.TensorSpec((*query.shape[:2], size, width), query.dtype),
    )
    heads = tf.transpose(heads, (1, 2, 0, 3, 4))
    return tf.reshape(heads, (-1, query.shape[1], count * size, width))[:, :, :length]


def _blocks(x: tf.Tensor, axis: int, count: int) -> tf.Tensor:
    """Pad `axis` to `count` blocks of one size, and put their number first."""
    shape = [-1 if size is None else size for size in x.shape]
    size = -(-shape[axis] // count)
    pads = [(0, count * size - shape[axis] if at == axis else 0) for at in range(len(shape))]
    x = tf.reshape(tf.pad(x, pads), (*shape[:axis], count, size, *shape[axis + 1 :]))
    return tf.transpose(x, (axis, *(each for each in range(len(shape) + 1) if each != axis)))


# Beyond this, a language model's logits are made in pieces of at most as many bytes. Smaller pieces
# cost time, as each one adds to the gradient of all weights.
_MOST_LOGITS = 1 << 30


class LogitPieces:
    """The logits of tokens (batch, length, classes), a piece of which exists at a time."""

    def __init__(self, x: tf.Tensor, head: Dense, count: int) -> None:
        """Take vectors `x` (batch, length, size), of which `head` makes logits `count` times."""
        self._x, self._head, self._count = x, head, count
        self._known = dict[Any, list[tf.Tensor]]()

    def score(self, function: Callable[..., Sequence[tf.Tensor]], targets: tf.Tensor) -> Any:
        """Return what `function` makes of logits and `targets`: tensors, float32 (batch, length).

        A backward pass makes the logits again. The same question gets the same tensors.
        """
        key = (function, targets.ref())
        if key not in self._known:
            self._known[key] = tf.unstack(self._score(function, targets), axis=-1)
        return self._known[key]

    def _score(self, function: Callable[..., Sequence[tf.Tensor]], targets: tf.Tensor) -> tf.Tensor:
        # Read here, so that the pieces' gradients add up in the type of the weights.
        weights = [tf.convert_to_tensor(each) for each in (self._head.kernel, self._head.bias)]

        def score_piece(piece: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            vectors, own = piece
            score = lambda *each: tf.stack(function(_dense(*each), own), axis=-1)  # noqa: E731
            return tf.recompute_grad(score)(vectors, *weights)

        pieces = [_blocks(each, 1, self._count) for each in (self._x, targets)]
        found = tf.map_fn(score_piece, tuple(pieces), fn_output_signature=tf.float32)
        batch, length = self._x.shape[:2]
        found = tf.transpose(found, (1, 0, 2, 3))
        return tf.reshape(found, (batch, -1, found.shape[-1]))[:, :length]


def logits_of(x: tf.Tensor, head: Dense) -> tf.Tensor | LogitPieces:
    """Return the logits of vectors (batch, length, size), in pieces if they are large."""
    batch, length = x.shape[:2]
    # A batch of an unknown size is none on a TPU, and may be any.
    bytes_ = 4 * (batch or 0) * length * head.bias.shape[0]
    if bytes_ <= _MOST_LOGITS:
        return tf.cast(head(x), tf.float32)
    # A power of two, into which most lengths can be divided.
    count = 1 << (-(-bytes_ // _MOST_LOGITS) - 1).bit_length()
    return LogitPieces(x, head, min(count, length))


def dropout(x: tf.Tensor, rate: float, training: bool) -> tf.Tensor:
    """In training, drop each number with probability `rate`; keep the expected value."""
    if not training or rate == 0:
        return x
    return tf.nn.experimental.stateless_dropout(x, rate=rate, seed=next_seed())
