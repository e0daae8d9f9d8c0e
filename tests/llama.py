"""A decoder whose feed-forward layers have a gate, as Llama's: for published times.

Its positions are learned and its norms are LayerNorm, which costs no more than Llama's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tpu_training.models import layers, networks, params as base, registry


@dataclass(frozen=True, kw_only=True)
class Params(registry.BertParams):
    """Those of `bert`."""

    hidden_size: int = base.param(128, "size of a token's vector, a multiple of heads", 8, 8192)
    feed_forward: int = base.param(2048, "size of a feed-forward layer", 8, 65_536)


class Layer(networks.EncoderLayer):
    """A layer of `bert` with a gate."""

    def __init__(self, params: Params, seed: int) -> None:
        """Build for vectors of the hidden size."""
        size, wide = params.hidden_size, params.feed_forward
        super().__init__(size, params.heads, params.dropout, seed)
        self.gate, self.widen = layers.Dense(size, wide, seed), layers.Dense(size, wide, seed + 2)
        self.narrow = layers.Dense(wide, size, seed + 3)

    def __call__(
        self, x: tf.Tensor, texts: tf.Tensor, training: bool, causal: bool = False
    ) -> tf.Tensor:
        """Map (batch, length, size)."""
        x = self.attention_norm(x + self.attention(x, texts, causal))
        wide = tf.nn.silu(self.gate(x)) * self.widen(x)
        return self.feed_forward_norm(x + self.narrow(wide))


def create_model(params: Params, spec: Any, seed: int) -> tf.Module:
    """Build the network of `bert` with other layers."""
    network = registry.create_bert(params, spec, seed)
    network.layers = [Layer(params, seed + 2 + 4 * index) for index in range(params.layers)]
    return network
