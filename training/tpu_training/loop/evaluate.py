"""Evaluate exactly over the whole test set."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.deal import NextBatch
from tpu_training.data.input.pipeline import evaluation_batches
from tpu_training.errors import DataError
from tpu_training.loop.graphs import repeat
from tpu_training.loop.state import TrainState
from tpu_training.models.params import Params

# TensorFlow's words for a data set that ends before its announced number of batches.
_TOO_FEW = "was expected to contain"


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy over `examples` test examples."""

    loss: float
    accuracy: float
    examples: int

    @property
    def scalars(self) -> dict[str, float]:
        """The values by their TensorBoard tags."""
        return {"test/loss": self.loss, "test/accuracy": self.accuracy}


def create_evaluation(
    cluster: Cluster, params: Params, data: DataSet, state: TrainState
) -> Callable[[], Evaluation]:
    """Return a function that evaluates the state's current model; its first call compiles it.

    Every test example counts exactly once. The function raises DataError if the number of examples
    in the files differs from the manifest's.
    """
    expected = data.manifest.split("test").examples

    @functools.cache
    def compiled() -> Callable[[], tf.Tensor]:
        next_batch, steps = evaluation_batches(data, cluster, params)
        return _create_loop(cluster, params, state, next_batch, steps)

    def evaluate() -> Evaluation:
        try:
            with cluster.on_loop_device():
                loss, right, count = compiled()().numpy().tolist()
        except tf.errors.FailedPreconditionError as error:
            if _TOO_FEW not in str(error):
                raise
            count = math.nan
        if count != expected:
            held = "other" if math.isnan(count) else f"{count:.0f}"
            raise DataError(
                f"the test files in {data.directory} hold {held} examples, the manifest says "
                f"{expected}; copy the data set there again"
            )
        return Evaluation(loss / expected, right / expected, expected)

    return evaluate


def _create_loop(
    cluster: Cluster, params: Params, state: TrainState, next_batch: NextBatch, steps: int
) -> Callable[[], tf.Tensor]:
    """Compile a function that sums loss, correct answers and weights over `steps` batches."""
    strategy = cluster.strategy
    unsmoothed = dataclasses.replace(params, label_smoothing=0.0)

    def replica_step(
        features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits = state.forward(features, training=False)
        losses = state.losses(logits, labels, unsmoothed)
        right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
        return (
            tf.reduce_sum(losses * weights),
            tf.reduce_sum(tf.cast(right, tf.float32) * weights),
            tf.reduce_sum(weights),
        )

    def step(_: tf.Tensor, sums: tf.Tensor) -> tf.Tensor:
        parts = strategy.run(replica_step, next_batch())
        reduced = [strategy.reduce(tf.distribute.ReduceOp.SUM, part, axis=None) for part in parts]
        return sums + tf.stack(reduced)

    loop: Callable[[], tf.Tensor] = tf.function(
        lambda: repeat(steps, tf.zeros(3), step), autograph=False
    )
    return loop
