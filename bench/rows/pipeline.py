"""JPEG files to ResNet-50's input: this pipeline against Keras' and a hand-tuned tf.data loop."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
from sklearn.datasets import load_sample_images

from bench.result import Result
from tpu_training.data.convert.conversion import convert
from tpu_training.data.convert.source import Options
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import finish, training_rows
from tpu_training.models.params import CACHE_NONE, Params

_IMAGES = 1200
_SIZE = 224
# The mean of ImageNet's photographs, and images that are cut to the input's size beforehand.
_PHOTOS, _CUT = (375, 500), (_SIZE, _SIZE)
_BATCH = 64
_WARM_UP = 6
_BATCHES = 16
_ROUNDS = 9


def measure() -> list[Result]:
    """JPEG files of 224x224, which have the goals; then photographs that are resized.

    Of a photograph's time nine tenths are libjpeg's decoding and TensorFlow's bilinear resizing, in
    the same operations for all three: no pipeline can be much faster there than another.
    """
    keras_cut, tuned_cut, rate_cut = _compare(_CUT)
    keras, tuned, rate = _compare(_PHOTOS)
    photos, cut = "pipeline: photographs", "pipeline: JPEG 224x224"
    return [
        Result(f"{cut}, against Keras' loader", keras_cut, "ratio", 1.2, "higher"),
        Result(f"{cut}, against a hand-tuned loop", tuned_cut, "ratio", 1.0, "higher"),
        Result(f"{cut}, images/s", rate_cut, "1/s", better="higher"),
        Result(f"{photos}, against Keras' loader", keras, "ratio", better="higher"),
        Result(f"{photos}, against a hand-tuned loop", tuned, "ratio", better="higher"),
        Result(f"{photos}, images/s", rate, "1/s", better="higher"),
    ]


def _compare(size: tuple[int, int]) -> tuple[float, float, float]:
    """Ratios to Keras and to the hand-tuned loop, the medians of those of each turn; images/s."""
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        _write_photos(photos, size)
        convert(str(photos), str(Path(folder) / "data"), Options(test_fraction=0.01))
        data = open_data(str(Path(folder) / "data"))
        pipelines = (_ours(data), _hand_tuned(data), _keras(photos))
        turns = [[_images_per_second(one) for one in pipelines] for _ in range(_ROUNDS)]
    return (
        statistics.median(ours / keras for ours, _, keras in turns),
        statistics.median(ours / tuned for ours, tuned, _ in turns),
        statistics.median(ours for ours, _, _ in turns),
    )


def _write_photos(folder: Path, size: tuple[int, int]) -> None:
    """Random parts of scikit-learn's two photographs, one class each."""
    for number, photo in enumerate(load_sample_images().images):
        (folder / str(number)).mkdir(parents=True)
        for position in range(_IMAGES // 2):
            seed = (number, position)
            part = tf.image.stateless_random_crop(photo, (*size, 3), seed)
            part = tf.image.stateless_random_flip_left_right(part, seed)
            encoded = tf.io.encode_jpeg(part, quality=90)
            (folder / str(number) / f"{position}.jpg").write_bytes(encoded.numpy())


def _ours(data: DataSet) -> tf.data.Dataset:
    """From the files, as for a data set that is too large for memory."""
    params = Params(global_batch_size=_BATCH, image_size=_SIZE, cache=CACHE_NONE)
    return finish(training_rows(data, params, 0, 1, 0), params)


def _hand_tuned(data: DataSet) -> tf.data.Dataset:
    """All that https://www.tensorflow.org/guide/data_performance advises, on the same files."""
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }

    def parse(serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(serialised, features)
        image = tf.io.decode_jpeg(example["image"], channels=3)
        if data.manifest.spec.shape[:2] != (_SIZE, _SIZE):
            image = tf.cast(tf.image.resize(image, (_SIZE, _SIZE)), tf.uint8)
        return tf.ensure_shape(image, (_SIZE, _SIZE, 3)), tf.cast(example["label"], tf.int32)

    return (
        tf.data.Dataset.from_tensor_slices(data.paths("train"))
        .interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        .shuffle(1024)
        .repeat()
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(_BATCH, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def _keras(photos: Path) -> tf.data.Dataset:
    dataset = tf.keras.utils.image_dataset_from_directory(
        photos, image_size=(_SIZE, _SIZE), batch_size=_BATCH, verbose=False
    )
    return dataset.repeat().prefetch(tf.data.AUTOTUNE)


def _images_per_second(dataset: tf.data.Dataset) -> float:
    """Of an iterator of its own: one that waits for its turn would fill its buffers meanwhile."""
    batches = iter(dataset)
    for _ in range(_WARM_UP):
        next(batches)
    started = time.perf_counter()
    for _ in range(_BATCHES):
        next(batches)
    return _BATCH * _BATCHES / (time.perf_counter() - started)
