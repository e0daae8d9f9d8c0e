"""The input pipeline: what it reads of a bucket, how it shuffles, how fast it is."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

from bench.measure import Result, in_turn, write_mnist
from tests.counted import counted_bucket, served_by_used
from tests.shuffle import correlation_of_neighbours, read_epochs, write_numbers
from tpu_training.api import write_data
from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint import NoTpu, Wait
from tpu_training.data.conversion import Storage, convert
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import finish, training_batches, training_rows
from tpu_training.data.source import Options
from tpu_training.job.start import set_up_buckets
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop
from tpu_training.models.params import CACHE_NONE, Params
from tpu_training.models.registry import load_model
from tpustack import datasets

set_up_buckets(os.environ)

_BATCH, _HOSTS = 256, (1, 8)
_IMAGES, _SIDE = 2816, 144


def measure_reads() -> list[Result]:
    """Images of 62 kB in 84 files, none kept in memory, as of a larger set."""
    with tempfile.TemporaryDirectory() as temporary, counted_bucket(Path(temporary, "cloud")) as at:
        images = np.random.default_rng(0).integers(0, 256, (_IMAGES, _SIDE, _SIDE, 3), np.uint8)
        labels, folder = np.arange(_IMAGES) % 10, Path(temporary, "data")
        write_data(str(folder), train=(images, labels), test=(images[:512], labels[:512]))
        data = open_data(at.upload(folder))
        params = Params(global_batch_size=_BATCH, cache=CACHE_NONE)
        found = {hosts: served_by_used(at, data, params, hosts) for hosts in _HOSTS}
    name = "bytes read from a bucket / bytes used, hosts:"
    return [Result(f"{name} {hosts}", ratio, "ratio", 1.1) for hosts, ratio in found.items()]


# --- How well the input pipeline shuffles a dataset that is ten times its window.

# Ten windows of 1,600 MiB are a thousand files of 16 MiB.
_EXAMPLES, _FILES, _WINDOW, _SHUFFLE_BATCH, _EPOCHS = 100_000, 1000, 10_000, 160, 3


def measure_shuffle() -> list[Result]:
    """Read some epochs of small records, with as many files in a window as large ones have."""
    with tempfile.TemporaryDirectory() as folder:
        shards = write_numbers(Path(folder), _EXAMPLES, _FILES)
        orders = read_epochs(shards, _WINDOW, _SHUFFLE_BATCH, _EPOCHS)
    found = correlation_of_neighbours(orders)
    return [Result("shuffle: rank correlation of neighbours", abs(found), "", 0.01)]


# --- Training with the real input pipeline against a batch that is on the device already.
#
# And what photographs take of the host's processor.

_PAIRS = 9
_RESNET = {"global_batch_size": 128, "depth": 8, "augmentation": "pad_crop_flip"}
# Models on MNIST, their parameters, and the steps of each turn.
_CASES = (("mnist_cnn", {"global_batch_size": 1024}, 12), ("resnet", _RESNET, 4))


def measure_input() -> list[Result]:
    """Turns of each, one after the other; the ratio is the median of those of each pair."""
    with tempfile.TemporaryDirectory() as folder:
        data = open_data(str(write_mnist(Path(folder))))
        cluster = connect(NoTpu(), Wait(), local_devices=0)
        return [_measure(cluster, data, *case) for case in _CASES]


def _measure(
    cluster: Cluster, data: DataSet, name: str, parameters: dict[str, Any], count: int
) -> Result:
    model = load_model(name)
    params = model.params(**parameters)
    state = create_train_state(cluster, model, params, data.manifest, 10_000)
    real_batches = training_batches(data, cluster, params)
    one_batch = real_batches()
    real = create_train_loop(cluster, params, state, real_batches)
    synthetic = create_train_loop(cluster, params, state, lambda: one_batch)

    def rate_of(loop: Callable[[tf.Tensor], object]) -> float:
        started = time.perf_counter()
        loop(tf.constant(count))
        return count / (time.perf_counter() - started)

    # The first turn of each compiles.
    rate_of(real), rate_of(synthetic)
    steps = in_turn(lambda: rate_of(real), lambda: rate_of(synthetic), _PAIRS)
    name = f"input: {name}, batch {params.global_batch_size}"
    return Result(f"{name}: against data on the device", steps.ratio, "ratio", 0.97, "higher")


# --- JPEG files to ResNet-50's input: this pipeline against Keras' and a hand-tuned tf.data loop.
#
# And the same from a bucket of a local cloud, which takes its part of the processor.

_PHOTOS_NUMBER, _SIZE, _PIPELINE_BATCH = 1200, 224, 64
_WARM_UP, _BATCHES, _ROUNDS = 6, 16, 9


def measure_pipeline() -> list[Result]:
    """Medians of what each turn's rates are to one another."""
    with tempfile.TemporaryDirectory() as temporary, counted_bucket(Path(temporary, "cloud")) as at:
        photos, folder = Path(temporary, "photos"), Path(temporary, "data")
        _write_photos(photos)
        convert(str(photos), str(folder), Options(test_fraction=0.01))
        data, remote = open_data(str(folder)), open_data(at.upload(folder))
        pipelines = (_ours(data), _keras(photos), _hand_tuned(data), _ours(remote))
        turns = [[_images_per_second(one) for one in pipelines] for _ in range(_ROUNDS)]
    rate = statistics.median(ours for ours, *_ in turns) / (os.cpu_count() or 1)
    keras = statistics.median(ours / keras for ours, keras, _, _ in turns)
    tuned = statistics.median(ours / tuned for ours, _, tuned, _ in turns)
    bucket = statistics.median(bucket / ours for ours, _, _, bucket in turns)
    name = "pipeline: JPEG 224x224"
    return [
        Result(f"{name}, a core", rate, "1/s", better="higher"),
        Result(f"{name}, against Keras' loader", keras, "ratio", 1.2, "higher"),
        Result(f"{name}, against a hand-tuned loop", tuned, "ratio", 1.0, "higher"),
        Result(f"{name}, from a bucket against a disk", bucket, "ratio", 0.9, "higher"),
    ]


def _write_photos(folder: Path) -> None:
    """Random parts of scikit-learn's two photographs, one class each."""
    for number, photo in enumerate(load_sample_images().images):
        (folder / str(number)).mkdir(parents=True)
        for position in range(_PHOTOS_NUMBER // 2):
            seed = (number, position)
            part = tf.image.stateless_random_crop(photo, (_SIZE, _SIZE, 3), seed)
            part = tf.image.stateless_random_flip_left_right(part, seed)
            encoded = tf.io.encode_jpeg(part, quality=90)
            (folder / str(number) / f"{position}.jpg").write_bytes(encoded.numpy())


def _ours(data: DataSet) -> tf.data.Dataset:
    """From the files, as for a dataset that is too large for memory."""
    params = Params(global_batch_size=_PIPELINE_BATCH, image_size=_SIZE, cache=CACHE_NONE)
    return finish(training_rows(data, params, 0, 1, 0), params)


def _hand_tuned(data: DataSet) -> tf.data.Dataset:
    """All that https://www.tensorflow.org/guide/data_performance advises, on the same files."""
    kinds = {"image": tf.string, "label": tf.int64}
    features = {name: tf.io.FixedLenFeature((), kind) for name, kind in kinds.items()}

    def parse(serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(serialised, features)
        image = tf.io.decode_jpeg(example["image"], channels=3)
        return tf.ensure_shape(image, (_SIZE, _SIZE, 3)), tf.cast(example["label"], tf.int32)

    return (
        tf.data.Dataset.from_tensor_slices(data.paths("train"))
        .interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        .shuffle(1024)
        .repeat()
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(_PIPELINE_BATCH, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def _keras(photos: Path) -> tf.data.Dataset:
    dataset = tf.keras.utils.image_dataset_from_directory(
        photos, image_size=(_SIZE, _SIZE), batch_size=_PIPELINE_BATCH, verbose=False
    )
    return dataset.repeat().prefetch(tf.data.AUTOTUNE)


def _images_per_second(dataset: tf.data.Dataset) -> float:
    """Of an iterator of its own: one that waits for its turn would fill its buffers."""
    batches = iter(dataset)
    for _ in range(_WARM_UP):
        next(batches)
    started = time.perf_counter()
    for _ in range(_BATCHES):
        next(batches)
    return _PIPELINE_BATCH * _BATCHES / (time.perf_counter() - started)


# --- How much of packed examples is text.

_LENGTH = 32


def measure_packing() -> list[Result]:
    """WordNet's definitions of nouns, at the length of training/recipes/wordnet-nouns.md."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, storage = f"{temporary}/data", Storage(text_length=_LENGTH, packed=True)
        convert(str(datasets.wordnet_nouns()), folder, None, storage)
        data = open_data(folder)
        params = Params(global_batch_size=data.manifest.split("train").examples)
        ((tokens, *_),) = training_rows(data, params, 0, 1, 0).take(1).as_numpy_iterator()
    useful = np.count_nonzero(tokens) / tokens.size
    return [Result("packing: tokens that are text", useful, "part", 0.95, "higher")]
