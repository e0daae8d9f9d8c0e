"""What photographs cost the host's processor, decoded, cropped and resized; prints JSON.

Usage: python -m bench.trainer.photographs FOLDER

The photographs are scikit-learn's two, cut and stored like ImageNet's: 500 x 375 pixels and about
110 kB (its training set has 1.28 million images in 138 GB). The processor's seconds count, not the
clock's, so that the figure holds for one core, whatever else the machine does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
from pathlib import Path
from unittest import mock

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

from tpu_training.data import pipeline
from tpu_training.data.convert.conversion import convert
from tpu_training.data.convert.source import Options
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.preprocessing import Preprocessing, training_preprocessing
from tpu_training.models.params import RESIZED_CROP_FLIP, Params

_HEIGHT, _WIDTH, _QUALITY = 375, 500, 98
_EACH = 128
_BATCH, _WARM_UP, _BATCHES = 128, 3, 12


def main(folder: Path) -> None:
    """Print images a second of one core, all in all and without the work on single images."""
    _write(folder / "photographs")
    convert(str(folder / "photographs"), str(folder / "data"), Options(test_fraction=0.1))
    data = open_data(str(folder / "data"))
    whole = _images_per_cpu_second(data)

    def without_images(*arguments: object) -> Preprocessing:
        real = training_preprocessing(*arguments)  # type: ignore[arg-type]
        return dataclasses.replace(real, example=lambda *_: tf.zeros(real.shape, tf.uint8))

    with mock.patch.object(pipeline, "training_preprocessing", without_images):
        rest = _images_per_cpu_second(data)
    size = data.shards("train").bytes_per_example
    print(json.dumps({"per_core": whole, "without_images": rest, "bytes": size}))


def _write(folder: Path) -> None:
    random = np.random.default_rng(0)
    for number, photograph in enumerate(load_sample_images().images):
        (folder / str(number)).mkdir(parents=True)
        for copy in range(_EACH):
            top, left = random.integers(0, np.array(photograph.shape[:2]) - (_HEIGHT, _WIDTH))
            part = photograph[top : top + _HEIGHT, left : left + _WIDTH]
            encoded = tf.io.encode_jpeg(part, quality=_QUALITY).numpy()
            (folder / str(number) / f"{copy}.jpg").write_bytes(encoded)


def _images_per_cpu_second(data: DataSet) -> float:
    params = Params(
        global_batch_size=_BATCH, image_size=224, augmentation=RESIZED_CROP_FLIP, cache="none"
    )
    batches = iter(pipeline.training_rows(data, params, 0, 1, 0))
    for _ in range(_WARM_UP):
        next(batches)
    begun = _cpu_seconds()
    for _ in range(_BATCHES):
        next(batches)
    return _BATCHES * _BATCH / (_cpu_seconds() - begun)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(Path(sys.argv[1]))
