"""Evaluation, exact over the whole test set."""

import dataclasses
from dataclasses import dataclass

import tensorflow as tf

from training.cluster import Cluster
from training.data_set import DataSet
from training.errors import DataError
from training.graphs import repeat
from training.input_pipeline import evaluation_batches
from training.params import Params
from training.state import TrainState


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and share of right answers over `examples` test examples."""

    loss: float
    accuracy: float
    examples: int

    @property
    def scalars(self) -> dict[str, float]:
        """By the names that TensorBoard has for them."""
        return {"test/loss": self.loss, "test/accuracy": self.accuracy}


def evaluate(cluster: Cluster, params: Params, data: DataSet, state: TrainState) -> Evaluation:
    """Evaluate the state's model; every test example counts exactly once."""
    next_batch, steps = evaluation_batches(data, cluster, params)
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

    def loop() -> tf.Tensor:
        return repeat(steps, tf.zeros(3), step)

    with cluster.on_loop_device():
        loss, right, count = tf.function(loop, autograph=False)().numpy().tolist()
    expected = data.manifest.split("test").examples
    if count != expected:
        raise DataError(
            f"the test files in {data.directory} hold {count:.0f} examples, the manifest says "
            f"{expected}; copy the data set there again"
        )
    return Evaluation(loss / expected, right / expected, expected)
