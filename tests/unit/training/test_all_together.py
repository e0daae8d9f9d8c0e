"""All that widens a step at once: what a job resumes is what it would have done, to the bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.reader import JobRecord
from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import open_data
from tpu_training.data.pipeline import training_batches
from tpu_training.loop.state import TrainState, create_train_state
from tpu_training.loop.train import TrainLoop, create_train_loop, run_loop
from tpu_training.models.layers import Dense, dropout, normalise
from tpu_training.models.networks import ConvNorm
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import ModelDefinition
from tpu_training.models.step_context import rematerialised

pytestmark = pytest.mark.training

COMMON = {
    "global_batch_size": 16,
    "precision": "bfloat16",
    "weight_decay": 0.01,
    "clip_norm": 1.0,
    "label_smoothing": 0.1,
    "ema_decay": 0.9,
    "rate_factors": "head=2",
    "mixup": 0.2,
    "cutmix": 1.0,
    "augmentation": "pad_crop_flip",
    "freeze": "stem",
}


class Small(tf.Module):  # type: ignore[misc]
    """A stem, a block that is computed twice, dropout and a head."""

    def __init__(self, classes: int, synchronised: bool) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 1, 4, seed=1, stride=4)
        self.block = ConvNorm(3, 4, 8, seed=2, stride=2)
        self.block.norm.synchronised = synchronised
        self.head = Dense(8, classes, seed=3)

    def __call__(self, images: tf.Tensor, training: bool) -> tf.Tensor:
        x = self.stem(normalise(images, tf.bfloat16), training)
        x = rematerialised(partial(self._twice, training=training), "blocks", training)(x)
        return tf.cast(self.head(tf.reduce_mean(x, axis=(1, 2))), tf.float32)

    def _twice(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        return dropout(tf.nn.relu(self.block(x, training)), 0.3, training)


@pytest.fixture(scope="module")
def two_replicas(cluster: Cluster) -> Cluster:
    """Two of the devices into which this process is split."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    return Cluster(strategy, "", None, has_tpu=False)


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "adam", "gradient_accumulation": 2},
        {"optimizer": "nesterov"},
    ],
    ids=["in parts", "synchronised"],
)
def test_a_resumed_training_with_everything_on_computes_the_same_bits(
    two_replicas: Cluster, bars: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    data, params = open_data(str(bars)), build_params(COMMON | given, ())
    synchronised = params.gradient_accumulation == 1
    definition = ModelDefinition("small", Params, lambda *_: Small(10, synchronised))

    def create() -> tuple[TrainState, Checkpoints]:
        state = create_train_state(two_replicas, definition, params, data.manifest, 4)
        record = JobRecord("small", params)
        return state, Checkpoints(str(tmp_path), state, record, 3, two_replicas)

    def do(state: TrainState, steps: int) -> TrainLoop:
        batches = training_batches(data, two_replicas, params, int(state.step.numpy()))
        loop = create_train_loop(two_replicas, params, state, batches)
        figures = run_loop(two_replicas, loop, steps)
        assert np.isfinite(figures.loss)
        assert figures.gradient_norm > 0
        return loop

    whole, checkpoints = create()
    loop = do(whole, 2)
    with checkpoints:
        checkpoints.save(2)
    run_loop(two_replicas, loop, 2)
    resumed, checkpoints = create()
    assert checkpoints.restore_latest()
    do(resumed, 2)
    expected, found = numbers(whole), numbers(resumed)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not np.array_equal(expected[name], found[name])] == []


def numbers(state: TrainState) -> dict[str, npt.NDArray[Any]]:
    checkpoint = tf.train.Checkpoint(
        model=state.model, optimizer=state.optimizer, average=state.average, step=state.step
    )
    variables = enumerate(tf.train.TrackableView(checkpoint).descendants())
    return {
        f"{number} {node.name}": node.numpy()
        for number, node in variables
        if isinstance(node, tf.Variable)
    }
