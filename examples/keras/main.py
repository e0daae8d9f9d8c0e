"""Keras 3 on JAX, which is Keras' way onto TPUs: the batch is divided among all devices."""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features of ten classes, a pattern each under noise, and their classes."""
    patterns = np.random.default_rng(0).normal(size=(10, 64))
    random = np.random.default_rng(seed)
    classes = random.integers(10, size=count)
    return patterns[classes] + 2 * random.normal(size=(count, 64)), classes


def main() -> None:
    """Train, and print devices and accuracy. With --hosts, together with the slice's others."""
    if "--hosts" in sys.argv:
        keras.distribution.initialize()
    devices = keras.distribution.list_devices() or ["cpu:0"]
    print(f"devices: {len(devices)} x {devices[0].split(':')[0]}", flush=True)
    if keras.backend.backend() == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    layers = keras.layers
    model = keras.Sequential([layers.Dense(64, "relu"), layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(*examples(4000, 1), batch_size=80, epochs=4, verbose=2)
    _, accuracy = model.evaluate(*examples(800, 2), batch_size=80, verbose=0)
    print(f"accuracy: {accuracy:.3f}")


if __name__ == "__main__":
    main()
