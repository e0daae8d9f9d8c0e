"""The next token, from those before it: the targets are the features, one place on."""

import dataclasses

import tensorflow as tf

from tpu_training.models.spec import IGNORED, NOTHING, DataSpec, text_length
from tpu_training.models.task import Prepare, Task
from tpu_training.tasks.counting import token_losses, token_metrics


def model_spec(spec: DataSpec) -> DataSpec:
    """Give the model all tokens but the last, and ask for logits at each."""
    length = text_length(spec) - 1
    return dataclasses.replace(
        spec, shape=(length,), outputs=(length, spec.vocabulary), targets=NOTHING, causal=True
    )


def prepare(spec: DataSpec) -> Prepare:
    """Return what makes inputs and targets of the stored tokens; padding is no target."""

    def shift(
        features: tf.Tensor, targets: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        following = features[:, 1:]
        return features[:, :-1], tf.where(following > 0, following, IGNORED)

    return shift


task = Task(
    name="causal_lm",
    losses=token_losses,
    metrics=token_metrics,
    any_targets=True,
    model_spec=model_spec,
    prepare=prepare,
    best="token_loss",
)
