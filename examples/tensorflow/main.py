"""A model of one's own, trained by this project's trainer on the TPU that the job was given."""

import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training import fit, write_data


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images of ten classes, a pattern each under noise, and their classes."""
    patterns = np.random.default_rng(0).uniform(40, 215, (10, 8, 8))
    random = np.random.default_rng(seed)
    classes = random.integers(10, size=count)
    images = patterns[classes] + random.normal(0, 60, (count, 8, 8))
    return np.clip(images, 0, 255).astype(np.uint8), classes


class Network(tf.Module):
    """Two layers."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.first = tf.Variable(tf.random.normal((pixels, 64), stddev=pixels**-0.5))
        self.last = tf.Variable(tf.random.normal((64, classes), stddev=0.1))

    def __call__(self, features: tf.Tensor, training: bool) -> tf.Tensor:
        """Return the logits."""
        pixels = tf.reshape(tf.cast(features, tf.float32), (tf.shape(features)[0], -1))
        return tf.nn.relu((pixels / 127.5 - 1) @ self.first) @ self.last


def create_model(params: Any, spec: Any, seed: int) -> Network:
    """Create the model on the devices that train it; say which they are."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    print(f"devices: {replicas} x {tf.config.list_logical_devices()[-1].device_type}", flush=True)
    tf.random.set_seed(seed)
    return Network(int(np.prod(spec.shape)), spec.classes)


def store(folder: str) -> str:
    """Put the data set where the TPU's hosts can read it, which is a bucket; return its place."""
    files = tf.io.gfile
    if not files.exists(f"{folder}/manifest.json"):
        files.makedirs(folder)
        with tempfile.TemporaryDirectory() as made:
            write_data(f"{made}/data", train=examples(4000, 1), test=examples(800, 2))
            # The description last: where it is, all is there.
            for name in sorted(os.listdir(f"{made}/data"), key="manifest.json".__eq__):
                files.copy(f"{made}/data/{name}", f"{folder}/{name}", overwrite=True)
    return folder


def main() -> None:
    """Train, and print the accuracy."""
    result = fit(
        create_model,
        data=store(f"{os.environ.get('DATA_DIR', 'data')}/patterns"),
        model_dir=os.environ.get("MODEL_DIR", "model"),
        epochs=4,
        global_batch_size=80,
        evaluation_batch_size=80,
    )
    print(f"accuracy: {result.metrics['test_accuracy']:.3f}")


if __name__ == "__main__":
    main()
