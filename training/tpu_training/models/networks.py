"""The networks of the built-in models: a small CNN, a BERT-style encoder, ResNets.

They are apart from layers.py because messages and profiles name the innermost line in this file:
"the second convolution of a block" tells more than the line of every convolution.

The encoder is that of arXiv:1810.04805; with a causal mask it is a GPT-style decoder.

The ResNets are those of He et al. (arXiv:1512.03385). Depths 18 to 152 have the stride in a
bottleneck's 3x3 convolution ("v1.5", to which public TPU results refer); depths 8 to 56 are those
of its section 4.2. If a block changes the shape, its shortcut has a 1x1 convolution. The last
normalisation of a block starts with scale zero (arXiv:1706.02677).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tpu_training.models import layers
from tpu_training.models.step_context import rematerialised

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
        self.conv_1 = layers.Conv2D(3, channels, first, seed)
        self.conv_2 = layers.Conv2D(3, first, second, seed + 1)
        self.flat = _quarter(height) * _quarter(width) * second
        self.dense_1 = layers.Dense(self.flat, _HIDDEN, seed + 2)
        self.dense_2 = layers.Dense(_HIDDEN, classes, seed + 3)

    def __call__(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Map unsigned byte images (batch, height, width, channels) to float32 logits."""
        x = layers.normalise(images, self._dtype)
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
        start: int = -1,
        padding: int = 0,
    ) -> None:
        """Build for `length` token ids; `causal` hides from each token those after it.

        With `start`, the token that begins a text, an example may have several: they don't see each
        other, and the positions of each begin at 0.

        `params` are those of registry.BertParams, whose size is a multiple of the heads.
        """
        super().__init__()
        self._dropout, self._remat = params.dropout, params.remat
        self._per_token, self._causal = per_token, causal
        self._start, self._padding = start, padding
        self._dtype = tf.as_dtype(params.precision)
        size, count = params.hidden_size, params.layers
        self.tokens = layers.Embedding(vocabulary, size, seed)
        self.positions = layers.Embedding(length, size, seed + 1)
        self.norm = layers.LayerNorm(size)
        # Each layer takes four seeds.
        self.layers = [
            EncoderLayer(size, params.heads, params.dropout, seed + 2 + 4 * index)
            for index in range(count)
        ]
        self.head = layers.Dense(size, outputs, seed + 2 + 4 * count)

    def __call__(self, ids: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Map int32 token ids (batch, length) to float32 numbers."""
        x, present = self._encode(ids, training)
        if self._per_token:
            return tf.cast(self.head(x), tf.float32)
        weights = tf.cast(present, tf.float32)[:, :, None]
        total = tf.reduce_sum(tf.cast(x, tf.float32) * weights, axis=1)
        mean = total / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0)
        return self.head(mean)

    def in_pieces(self, ids: tf.Tensor, training: bool) -> tf.Tensor | layers.LogitPieces:
        """Map token ids to the logits of each token, in pieces where all would be large."""
        return layers.logits_of(self._encode(ids, training)[0], self.head)

    def _encode(self, ids: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a vector for each token, and 1 for those that are no padding."""
        present = tf.cast(ids != self._padding, tf.int32)
        texts, positions = present, self.positions.table
        if self._start >= 0:
            first = ids == self._start
            texts *= 1 + tf.cumsum(tf.cast(first, tf.int32), axis=1)
            positions = self.positions(_places_in_text(first))
        x = self.norm(self.tokens(ids) + positions)
        x = layers.dropout(tf.cast(x, self._dtype), self._dropout, training)
        for layer in self.layers:
            encode = partial(layer, texts=texts, training=training, causal=self._causal)
            x = rematerialised(encode, self._remat, training)(x)
        return x, present


def _places_in_text(first: tf.Tensor) -> tf.Tensor:
    """Return each token's place in its text, int32; `first`, bool (batch, length), begin one."""
    places = tf.range(first.shape[1])
    begin = tf.where(first, places, 0)
    distance = 1
    # The greatest place of a beginning so far, by doubling the distance it is looked for.
    while distance < first.shape[1]:
        begin = tf.maximum(begin, tf.pad(begin[:, :-distance], ((0, 0), (distance, 0))))
        distance *= 2
    return places - begin


class EncoderLayer(tf.Module):  # type: ignore[misc]
    """Self-attention, then two dense layers; each block's residual sum is normalised."""

    def __init__(self, size: int, heads: int, dropout_rate: float, seed: int) -> None:
        """Build for vectors of `size`."""
        super().__init__()
        self._dropout = dropout_rate
        self.attention = layers.SelfAttention(size, heads, seed)
        self.attention_norm = layers.LayerNorm(size)
        self.widen = layers.Dense(size, _FEED_FORWARD * size, seed + 2)
        self.narrow = layers.Dense(_FEED_FORWARD * size, size, seed + 3)
        self.feed_forward_norm = layers.LayerNorm(size)

    def __call__(
        self, x: tf.Tensor, texts: tf.Tensor, training: bool, causal: bool = False
    ) -> tf.Tensor:
        """Map (batch, length, size); see SelfAttention for `texts`."""
        attended = self.attention(x, texts, causal)
        x = self.attention_norm(x + layers.dropout(attended, self._dropout, training))
        wide = self.widen(x)
        # GPT-2's is approximate, BERT's exact, which costs a v3 5 % of time and 13 % of memory, and
        # differs by less than what bfloat16 rounds off.
        wide = tf.nn.gelu(wide, approximate=causal or wide.dtype == tf.bfloat16)
        narrow = layers.dropout(self.narrow(wide), self._dropout, training)
        return self.feed_forward_norm(x + narrow)


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

        `params` are those of registry.ResNetParams; its width multiplies the channels of all stages
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
            if isinstance(module, layers.BatchNorm):
                module.synchronised = params.batch_norm != "replica"
        self.head = layers.Dense(inputs, classes, seed + 4)

    def __call__(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Map unsigned byte images (batch, height, width, channels) to float32 logits."""
        x = layers.normalise(images, self._dtype)
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
        self.conv = layers.Conv2D(size, inputs, outputs, seed, stride=stride, bias=False)
        self.norm = layers.BatchNorm(outputs, initial_scale)

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        """Map (batch, height, width, inputs) to (…, outputs)."""
        return self.norm(self.conv(x), training)


def _shortcut(inputs: int, outputs: int, stride: int, seed: int) -> ConvNorm | None:
    """None where the block keeps the shape."""
    if stride == 1 and inputs == outputs:
        return None
    return ConvNorm(1, inputs, outputs, seed, stride)
