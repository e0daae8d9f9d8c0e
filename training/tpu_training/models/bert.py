"""`--model=bert`: a small BERT-style encoder for text classification, without pre-training.

The default of two layers of 128 is the size of BERT-Tiny (arXiv:1908.08962).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tpu_training.errors import InputError
from tpu_training.models import params as base
from tpu_training.models.params import remat_param
from tpu_training.models.spec import DataSpec, flat_outputs, text_length

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class Params(base.Params):
    """AdamW with a linear schedule, as in BERT's training."""

    by_optimizer: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # For language: arXiv:2302.06675, section 5.
        "lion": {
            "learning_rate": 1e-4,
            "weight_decay": 0.1,
            "momentum": 0.95,
            "squares_momentum": 0.98,
        },
        "lars": {"learning_rate": 1.0},
    }
    layers: int = base.param(2, "encoder layers", 1, 48)
    hidden_size: int = base.param(128, "size of a token's vector, a multiple of heads", 8, 4096)
    heads: int = base.param(2, "heads of self-attention", 1, 64)
    dropout: float = base.param(0.1, "dropout rate in training", 0, 0.9)
    remat: str = remat_param()
    learning_rate: float = base.changed("learning_rate", 1e-3)
    schedule: str = base.changed("schedule", "linear")
    warmup_fraction: float = base.changed("warmup_fraction", 0.1)
    weight_decay: float = base.changed("weight_decay", 0.01)
    clip_norm: float = base.changed("clip_norm", 1.0)


def create_model(params: Params, spec: DataSpec, seed: int) -> tf.Module:
    """Build the network. Raises InputError if the hidden size is not a multiple of the heads."""
    if params.hidden_size % params.heads:
        raise InputError(
            f"--hidden_size={params.hidden_size} is not divisible by --heads={params.heads}; "
            f"use {max(1, params.hidden_size // params.heads) * params.heads}"
        )
    length = text_length(spec)
    per_token = len(spec.output_shape) > 1
    outputs = spec.output_shape[-1] if per_token else flat_outputs(spec, "bert")
    from tpu_training.models.networks import Bert

    return Bert(
        length,
        spec.vocabulary,
        outputs,
        layers=params.layers,
        size=params.hidden_size,
        heads=params.heads,
        dropout_rate=params.dropout,
        precision=params.precision,
        remat=params.remat,
        seed=seed,
        per_token=per_token,
        causal=spec.causal,
    )
