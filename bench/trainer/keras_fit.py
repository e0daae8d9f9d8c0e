"""Steps a second of the trainer's loop and of Keras' fit, in turn; prints JSON.

Usage: python -m bench.trainer.keras_fit DATA
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

from bench.trainer.against_fit import print_rates
from tpu_training.cluster.cluster import connect
from tpu_training.cluster.endpoint import NoTpu, Wait
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.input.deal import NextBatch
from tpu_training.data.input.pipeline import training_batches
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model

_BATCH = 256
_STEPS = 200
_ROUNDS = 5
_STEPS_PER_EXECUTION = (1, 10, 50, 100, 200)


class Ours:
    """The trainer: its model, optimizer, input pipeline and loop."""

    def __init__(self, data: DataSet) -> None:
        params = Params(global_batch_size=_BATCH)
        self._cluster = connect(NoTpu(), Wait(), 0)
        definition = load_model("mnist_cnn")
        state = create_train_state(self._cluster, definition, params, data.manifest, 10**6)
        batches: NextBatch = training_batches(data, self._cluster, params)
        self._loop = create_train_loop(self._cluster, params, state, batches)

    def train(self) -> None:
        """_STEPS steps, in loops of 50 as by default."""
        for _ in range(_STEPS // 50):
            float(self._loop(tf.constant(50))[0])


class Keras:
    """The same network, optimizer and batches in the way of Keras' own guides."""

    def __init__(self, data: DataSet, steps_per_execution: int) -> None:
        keras: Any = tf.keras
        layers = keras.layers
        self._model = keras.Sequential(
            [
                layers.Rescaling(1 / 127.5, offset=-1.0),
                layers.Conv2D(16, 3, padding="same"),
                layers.MaxPooling2D(padding="same"),
                layers.ReLU(),
                layers.Conv2D(32, 3, padding="same"),
                layers.MaxPooling2D(padding="same"),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dense(128, activation="relu"),
                layers.Dense(10),
            ]
        )
        self._model.compile(
            optimizer=keras.optimizers.Adam(0.004),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
        self._batches = _read(data)

    def train(self) -> None:
        """_STEPS steps."""
        self._model.fit(self._batches, epochs=1, steps_per_epoch=_STEPS, verbose=0)


def _read(data: DataSet) -> tf.data.Dataset:
    """All examples in memory, shuffled, batched and prefetched: tf.data's own guide."""
    images, labels = [], []
    for record in tf.data.TFRecordDataset(data.paths("train")).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        images.append(feature["image"].bytes_list.value[0])
        labels.append(feature["label"].int64_list.value[0])
    shape = (len(labels), *data.manifest.spec.shape)
    pixels = tf.reshape(tf.io.decode_raw(images, tf.uint8), shape)
    examples = tf.data.Dataset.from_tensor_slices((pixels, labels)).cache()
    shuffled = examples.shuffle(len(labels), reshuffle_each_iteration=True).repeat()
    return shuffled.batch(_BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def main(folder: Path) -> None:
    """Measure the trainer and Keras on the data set in `folder`."""
    data = open_data(str(folder))
    print_rates(Ours(data), lambda n: Keras(data, n), _STEPS_PER_EXECUTION, _STEPS, _ROUNDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
