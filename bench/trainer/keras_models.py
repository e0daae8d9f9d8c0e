"""Steps a second of Keras models in the trainer's loop and in Keras' fit, in turn; prints JSON.

Usage: python -m bench.trainer.keras_models NAME FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np
import tensorflow as tf

from bench.trainer.against_fit import print_rates
from tpu_training.cluster.cluster import connect
from tpu_training.cluster.endpoint import NoTpu, Wait
from tpu_training.data.convert.arrays import source_of_arrays
from tpu_training.data.convert.convert import Storage, store
from tpu_training.data.data_set import open_data
from tpu_training.data.input.pipeline import training_batches
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop, run_loop
from tpu_training.models.params import build_params
from tpu_training.models.registry import ModelDefinition, load_model

_BATCH = 32
_STEPS = 25
_ROUNDS = 3
_STEPS_PER_EXECUTION = (1, 5, 25)
_EXAMPLES, _CLASSES, _VOCABULARY = 1024, 10, 1000

Arrays = tuple[Any, Any]


class Ours:
    """The trainer: its input pipeline and its loop, with the model as its file creates it."""

    def __init__(self, definition: ModelDefinition, arrays: Arrays, folder: Path) -> None:
        splits = {"train": arrays, "test": (arrays[0][:_BATCH], arrays[1][:_BATCH])}
        store(source_of_arrays("bench", splits, ()), str(folder), Storage())
        data = open_data(str(folder))
        params = build_params({"global_batch_size": _BATCH}, (), (), definition.params)
        self._cluster = connect(NoTpu(), Wait(), 0)
        state = create_train_state(self._cluster, definition, params, data.manifest, 10**6)
        batches = training_batches(data, self._cluster, params)
        self._loop = create_train_loop(self._cluster, params, state, batches)
        self.spec = data.manifest.input_spec(0)

    def train(self) -> None:
        """_STEPS steps in one loop."""
        run_loop(self._cluster, self._loop, _STEPS)


class Keras:
    """The same model, batches in memory, and `fit`."""

    def __init__(self, model: Any, arrays: Arrays, steps_per_execution: int) -> None:
        self._model = model
        self._model.compile(
            optimizer=model.optimizer,
            loss=model.loss,
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
        examples = tf.data.Dataset.from_tensor_slices(arrays).cache()
        shuffled = examples.shuffle(_EXAMPLES, reshuffle_each_iteration=True).repeat()
        self._batches = shuffled.batch(_BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def train(self) -> None:
        """_STEPS steps."""
        self._model.fit(self._batches, epochs=1, steps_per_epoch=_STEPS, verbose=0)


def _arrays(name: str) -> Arrays:
    random = np.random.default_rng(0)
    labels = random.integers(0, _CLASSES, _EXAMPLES).astype(np.int32)
    labels[:_CLASSES] = range(_CLASSES)
    if name == "transformer":
        return random.integers(1, _VOCABULARY, (_EXAMPLES, 64)).astype(np.int32), labels
    return random.integers(0, 256, (_EXAMPLES, 32, 32, 3)).astype(np.uint8), labels


def main(name: str, folder: Path) -> None:
    """Measure the trainer and Keras with the model NAME; keep data in `folder`."""
    arrays = _arrays(name)
    definition = load_model(str(Path(__file__).parent / "models" / f"{name}.py"))
    ours = Ours(definition, arrays, folder)

    def fit(steps_per_execution: int) -> Keras:
        model = definition.create_model(definition.params(), ours.spec, 0)
        return Keras(model, arrays, steps_per_execution)

    print_rates(ours, fit, _STEPS_PER_EXECUTION, _STEPS, _ROUNDS)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
