"""Basic layers on plain tf.Module, for models of this package and of users.

They are not Keras': TensorFlow 2.12 to 2.15 come with Keras 2, later ones with Keras 3, which names
and wraps variables differently, and a checkpoint of a built-in model must load under both. A user's
Keras 3 model is adapted as a whole; see keras.py.

Weights are float32; arithmetic uses the type of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tpu_training.models.step_context import (
    all_replicas,
    is_frozen,
    next_seed,
    record_statistic,
    rematerialised,
)

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
        return tf.nn.bias_add(x @ tf.cast(self.kernel, x.dtype), tf.cast(self.bias, x.dtype))


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
_LAYER_EPSILON = 1e-6


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


# --- The networks of the built-in models: a small CNN, a BERT-style encoder, ResNets.
#
# The encoder is that of arXiv:1810.04805; with a causal mask it is a GPT-style decoder.
#
# The ResNets are those of He et al. (arXiv:1512.03385). Depths 18 to 152 have the stride in a
# bottleneck's 3x3 convolution ("v1.5", to which public TPU results refer); depths 8 to 56 are those
# of its section 4.2. If a block changes the shape, its shortcut has a 1x1 convolution. The last
# normalisation of a block starts with scale zero (arXiv:1706.02677).

_CHANNELS = (16, 32)
_HIDDEN = 128


class MnistCnn(tf.Module):  # type: ignore[misc]
    """Two convolutions, each followed by max-pooling, and two dense layers.

    Pooling precedes ReLU: the result is the same for a quarter of the work.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], classes: int, precision: str, seed: int
    ) -> None:
        """Build for images of (height, width, channels); arithmetic uses `precision`."""
        super().__init__()
        self._dtype = tf.as_dtype(precision)
        height, width, channels = image_shape
        first, second = _CHANNELS
        self.conv_1 = Conv2D(3, channels, first, seed)
        self.conv_2 = Conv2D(3, first, second, seed + 1)
        self.flat = _quarter(height) * _quarter(width) * second
        self.dense_1 = Dense(self.flat, _HIDDEN, seed + 2)
        self.dense_2 = Dense(_HIDDEN, classes, seed + 3)

    def __call__(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Map unsigned byte images (batch, height, width, channels) to float32 logits."""
        x = normalise(images, self._dtype)
        x = tf.nn.relu(_halve(self.conv_1(x)))
        x = tf.nn.relu(_halve(self.conv_2(x)))
        x = tf.nn.relu(self.dense_1(tf.reshape(x, (-1, self.flat))))
        return tf.cast(self.dense_2(x), tf.float32)


def _halve(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")


def _quarter(size: int) -> int:
    """Halve `size` twice, rounding up."""
    return -(-size // 4)


_FEED_FORWARD = 4


class Bert(tf.Module):  # type: ignore[misc]
    """Token and position embeddings, encoder layers, and a head on each token or on their mean."""

    def __init__(
        self,
        params: Any,
        length: int,
        vocabulary: int,
        outputs: int,
        seed: int,
        per_token: bool,
        causal: bool,
    ) -> None:
        """Build for `length` token ids; `causal` hides from each token those after it.

        `params` are those of built_in.BertParams, whose size is a multiple of the heads.
        """
        super().__init__()
        self._dropout, self._remat = params.dropout, params.remat
        self._per_token, self._causal = per_token, causal
        self._dtype = tf.as_dtype(params.precision)
        size, layers = params.hidden_size, params.layers
        self.tokens = Embedding(vocabulary, size, seed)
        self.positions = Embedding(length, size, seed + 1)
        self.norm = LayerNorm(size)
        # Each layer takes four seeds.
        self.layers = [
            EncoderLayer(size, params.heads, params.dropout, seed + 2 + 4 * index)
            for index in range(layers)
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


_LARGE_WIDTH, _SMALL_WIDTH = 64, 16
_BOTTLENECK, _LEAST_WITH_BOTTLENECKS = 4, 50


class ResNet(tf.Module):  # type: ignore[misc]
    """A stem, stages of blocks that halve the image, global average pooling, a classifier."""

    def __init__(
        self,
        params: Any,
        stages: Sequence[int],
        large: bool,
        channels: int,
        classes: int,
        seed: int,
    ) -> None:
        """Build for images of `channels` channels and any size.

        `params` are those of built_in.ResNetParams; its width multiplies the channels of all stages
        (arXiv:1605.07146). `stages` has the number of blocks in each; `large` is for images like
        ImageNet's.
        """
        super().__init__()
        self._remat, self._large = params.remat, large
        self._dtype = tf.as_dtype(params.precision)
        block = Bottleneck if large and params.depth >= _LEAST_WITH_BOTTLENECKS else Block
        width = params.width * (_LARGE_WIDTH if large else _SMALL_WIDTH)
        size, stride = (7, 2) if large else (3, 1)
        self.stem = ConvNorm(size, channels, width, seed, stride)
        self.blocks: list[Block | Bottleneck] = []
        inputs = width
        for stage, count in enumerate(stages):
            for index in range(count):
                stride = 2 if stage and not index else 1
                # Four seeds a block; the stem has the first.
                seed += 4
                self.blocks.append(block(inputs, width << stage, stride, seed))
                inputs = self.blocks[-1].outputs
        for module in self.submodules:
            if isinstance(module, BatchNorm):
                module.synchronised = params.batch_norm != "replica"
        self.head = Dense(inputs, classes, seed + 4)

    def __call__(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Map unsigned byte images (batch, height, width, channels) to float32 logits."""
        x = normalise(images, self._dtype)
        x = tf.nn.relu(self.stem(x, training))
        if self._large:
            x = tf.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME")
        for block in self.blocks:
            x = rematerialised(partial(block, training=training), self._remat, training)(x)
        return tf.cast(self.head(tf.reduce_mean(x, axis=(1, 2))), tf.float32)


class Block(tf.Module):  # type: ignore[misc]
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, width: int, stride: int, seed: int) -> None:
        """Map `inputs` channels to `width`; `stride` 2 halves height and width."""
        super().__init__()
        self.outputs = width
        self.conv_1 = ConvNorm(3, inputs, width, seed, stride)
        self.conv_2 = ConvNorm(3, width, width, seed + 1, initial_scale=0.0)
        self.shortcut = _shortcut(inputs, width, stride, seed + 2)

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        """Map (batch, height, width, inputs)."""
        y = tf.nn.relu(self.conv_1(x, training))
        y = self.conv_2(y, training)
        return tf.nn.relu(y + (self.shortcut(x, training) if self.shortcut else x))


class Bottleneck(tf.Module):  # type: ignore[misc]
    """A 3x3 convolution between two of 1x1, and a shortcut around them."""

    def __init__(self, inputs: int, width: int, stride: int, seed: int) -> None:
        """Map `inputs` channels to 4 times `width`; `stride` 2 halves height and width."""
        super().__init__()
        self.outputs = _BOTTLENECK * width
        self.conv_1 = ConvNorm(1, inputs, width, seed)
        self.conv_2 = ConvNorm(3, width, width, seed + 1, stride)
        self.conv_3 = ConvNorm(1, width, self.outputs, seed + 2, initial_scale=0.0)
        self.shortcut = _shortcut(inputs, self.outputs, stride, seed + 3)

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        """Map (batch, height, width, inputs)."""
        y = tf.nn.relu(self.conv_1(x, training))
        y = tf.nn.relu(self.conv_2(y, training))
        y = self.conv_3(y, training)
        return tf.nn.relu(y + (self.shortcut(x, training) if self.shortcut else x))


class ConvNorm(tf.Module):  # type: ignore[misc]
    """A convolution and its normalisation."""

    def __init__(
        self,
        size: int,
        inputs: int,
        outputs: int,
        seed: int,
        stride: int = 1,
        initial_scale: float = 1.0,
    ) -> None:
        """Normalisation has an offset, so the convolution needs none."""
        super().__init__()
        self.conv = Conv2D(size, inputs, outputs, seed, stride=stride, bias=False)
        self.norm = BatchNorm(outputs, initial_scale)

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        """Map (batch, height, width, inputs) to (…, outputs)."""
        return self.norm(self.conv(x), training)


def _shortcut(inputs: int, outputs: int, stride: int, seed: int) -> ConvNorm | None:
    """None where the block keeps the shape."""
    if stride == 1 and inputs == outputs:
        return None
    return ConvNorm(1, inputs, outputs, seed, stride)
