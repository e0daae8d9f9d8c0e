"""Images as models take them: static shapes, and the same random treatment for the same step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.data import preprocessing
from tpu_training.data.arrays import source_of_arrays
from tpu_training.data.conversion import Storage, store
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import evaluation_rows, in_services, training_rows
from tpu_training.data.source import IMAGE, Options, Source, pick, split_at_random
from tpu_training.errors import EndpointError, InputError
from tpu_training.models.params import PAD_CROP_FLIP, RESIZED_CROP_FLIP, Params

pytestmark = pytest.mark.usefixtures("cluster")

BATCH = 8
PARAMS = Params(global_batch_size=BATCH, evaluation_batch_size=BATCH, seed=3)
Images = npt.NDArray[np.uint8]


def gradient(height: int, width: int) -> Images:
    """Red grows downwards, green to the right; so a pixel tells where it was."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = np.linspace(0, 255, height)[:, None]
    image[..., 1] = np.linspace(0, 255, width)[None, :]
    return image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG and PNG images of two classes and two sizes."""
    root = tmp_path_factory.mktemp("photos") / "source"
    for name, size in (("low", (40, 60)), ("wide", (30, 90))):
        (root / name).mkdir(parents=True)
        image = tf.constant(gradient(*size))
        for number in range(8):
            encoded = tf.io.encode_jpeg(image, quality=95) if number else tf.io.encode_png(image)
            (root / name / f"{number}").write_bytes(encoded.numpy())
    return root


@pytest.fixture(scope="module")
def photos(folder: Path) -> DataSet:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    labels = np.array([file.parent.name == "wide" for file in files], np.int64)
    parts = split_at_random(len(files), Options(test_fraction=0.3), "photos")
    splits = {
        split: pick(order, str, lambda number: files[number].read_bytes(), labels)
        for split, order in parts.items()
    }
    store(Source("photos", IMAGE, 2, splits), str(folder.parent / "photos"), Storage())
    return open_data(str(folder.parent / "photos"))


def batches(data: DataSet, params: Params, first: int, count: int) -> Iterator[Images]:
    for images, _ in training_rows(data, params, first, 1, 0).take(count).as_numpy_iterator():
        yield images


@pytest.mark.parametrize("augmentation", ["none", PAD_CROP_FLIP, RESIZED_CROP_FLIP])
def test_photographs_of_all_sizes_get_one_static_shape(photos: DataSet, augmentation: str) -> None:
    params = dataclasses.replace(PARAMS, image_size=24, augmentation=augmentation)
    dataset = training_rows(photos, params, 0, 1, 0)
    assert dataset.element_spec[0] == tf.TensorSpec((BATCH, 24, 24, 3), tf.uint8)
    first, second = batches(photos, params, 0, 2)
    assert np.array_equal(second, next(batches(photos, params, 1, 1)))
    assert first.std() > 30
    if augmentation == "none":
        # Only the centre is left: its corners are far from the gradient's ends.
        assert 10 < first[0, 0, 0, 0] < 60


def test_without_a_size_photographs_of_different_sizes_are_refused(photos: DataSet) -> None:
    with pytest.raises(InputError, match=r"--image_size=0: .* such as --image_size=224"):
        training_rows(photos, PARAMS, 0, 1, 0)


def test_evaluation_takes_the_centre_the_same_way_each_time(photos: DataSet) -> None:
    params = dataclasses.replace(PARAMS, image_size=16, augmentation=RESIZED_CROP_FLIP)
    rows = evaluation_rows(photos, params, 1, 0)
    (first, _, weights), *_ = rows.as_numpy_iterator()
    again = next(rows.as_numpy_iterator())[0]
    assert np.array_equal(first, again)
    assert weights.sum() == 5
    for image in first:
        assert abs(int(image[8, 8, 0]) - 135) < 12
        assert abs(int(image[8, 8, 1]) - 130) < 12


def test_a_crop_that_is_decoded_alone_is_the_crop_of_the_whole(folder: Path) -> None:
    window = tf.constant([8, 16, 20, 30])
    for name in ("0", "1"):
        encoded = (folder / "low" / name).read_bytes()
        assert preprocessing.image_size(encoded).numpy().tolist() == [40, 60]
        part = preprocessing.decode_and_crop(encoded, window, 3).numpy().astype(int)
        whole = preprocessing.decode(encoded, 3).numpy().astype(int)
        assert np.abs(part - whole[8:28, 16:46]).max() <= 4


def test_random_windows_keep_to_their_share_of_the_image_and_their_form() -> None:
    areas = []
    for number in range(50):
        top, left, height, width = preprocessing.random_window(
            tf.constant([100, 200]), (number, 1)
        ).numpy()
        assert top >= 0
        assert top + height <= 100
        assert left >= 0
        assert left + width <= 200
        assert 0.6 < width / height < 1.5
        areas.append(height * width / 20_000)
    assert min(areas) >= 0.07
    assert np.std(areas) > 0.1


def test_pad_crop_flip_shifts_by_up_to_four_pixels_and_mirrors_every_second() -> None:
    image = gradient(12, 12) // 2 + 64
    seeds = tf.random.stateless_uniform((256, 2), (1, 2), maxval=2**31 - 1, dtype=tf.int32)
    crops = preprocessing.pad_crop_flip(tf.repeat(image[None], 256, axis=0), seeds).numpy()
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
    expected = {
        padded[y : y + 12, x : x + 12][:, ::flip].tobytes(): flip
        for y in range(9)
        for x in range(9)
        for flip in (1, -1)
    }
    mirrored = [expected[crop.tobytes()] for crop in crops]
    assert 90 < mirrored.count(-1) < 166
    assert len({crop.tobytes() for crop in crops}) > 100


def test_every_step_and_every_example_gets_another_crop(bars: Path) -> None:
    params = dataclasses.replace(PARAMS, augmentation=PAD_CROP_FLIP)
    data = open_data(str(bars))
    plain = list(batches(data, PARAMS, 0, 4))
    shifted = list(batches(data, params, 0, 4))
    differences = [
        not np.array_equal(a, b)
        for before, after in zip(plain, shifted, strict=True)
        for a, b in zip(before, after, strict=True)
    ]
    assert sum(differences) > 25
    assert np.array_equal(next(batches(data, params, 3, 1)), shifted[3])


def test_raw_images_are_resized_and_cropped_too(tmp_path: Path) -> None:
    examples = (np.stack([gradient(20, 20)] * 20), [0, 1] * 10)
    source = source_of_arrays("gradients", {"train": examples, "test": examples}, ())
    store(source, str(tmp_path / "raw"), Storage(encoding="raw"))
    data = open_data(str(tmp_path / "raw"))
    for augmentation in ("none", RESIZED_CROP_FLIP):
        params = dataclasses.replace(PARAMS, image_size=16, augmentation=augmentation)
        assert next(batches(data, params, 0, 1)).shape == (BATCH, 16, 16, 3)


@contextmanager
def data_services(count: int) -> Iterator[list[str]]:
    """The addresses of so many tf.data services with one worker each."""
    service = tf.data.experimental.service
    dispatchers = [service.DispatchServer() for _ in range(count)]
    workers = [
        service.WorkerServer(
            service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        )
        for dispatcher in dispatchers
    ]
    yield [dispatcher.target for dispatcher in dispatchers]
    del workers, dispatchers


def first_batches(data: DataSet, params: Params, step: int) -> list[npt.NDArray[np.uint8]]:
    """Three batches from `step` on, as the services of `params` make them."""

    def build(hosts: int, host: int) -> tf.data.Dataset:
        return training_rows(data, params, step, hosts, host)

    rows = in_services(build, params.data_service)(1, 0)
    return [images for images, _ in rows.take(3).as_numpy_iterator()]


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_several_data_services_prepare_the_same_batches_from_any_step_on(
    bars: Path, cache: str
) -> None:
    """Three, of which none gets the same number of rows as another."""
    data, batch = open_data(str(bars)), 32
    params = dataclasses.replace(PARAMS, cache=cache, global_batch_size=batch)
    with data_services(3) as addresses:
        served = dataclasses.replace(params, data_service=",".join(addresses))
        for step in (0, 5):
            expected = batches(data, params, step, 3)
            assert all(map(np.array_equal, first_batches(data, served, step), expected)), step


def test_several_data_services_evaluate_every_example_once(bars: Path) -> None:
    data, params = open_data(str(bars)), dataclasses.replace(PARAMS, evaluation_batch_size=32)
    with data_services(3) as addresses:
        rows = in_services(
            lambda hosts, host: evaluation_rows(data, params, hosts, host), ",".join(addresses)
        )(1, 0)
        seen = [labels[weights == 1] for _, labels, weights in rows.as_numpy_iterator()]
    assert len(seen) == -(-1003 // 32)
    assert np.bincount(np.concatenate(seen)).tolist() == [101] * 3 + [100] * 7


def test_a_data_service_with_several_workers_or_none_that_answers_is_refused(bars: Path) -> None:
    data, service = open_data(str(bars)), tf.data.experimental.service
    with data_services(1) as (address,):
        params = dataclasses.replace(PARAMS, data_service=address)
        assert all(map(np.array_equal, first_batches(data, params, 5), batches(data, PARAMS, 5, 3)))
        config = service.WorkerConfig(dispatcher_address=address.split("://")[1])
        another = service.WorkerServer(config)
        with pytest.raises(InputError, match=r"has 2 workers.* a dispatcher of its own"):
            first_batches(data, params, 5)
        del another
    with pytest.raises(EndpointError, match=r"no tf\.data service answers there"):
        first_batches(data, params, 5)


def test_more_data_services_than_rows_of_a_batch_are_refused(bars: Path) -> None:
    with pytest.raises(InputError, match="a batch of 8 examples has none for some of 9 sources"):
        training_rows(open_data(str(bars)), PARAMS, 0, 9, 0)


@pytest.mark.parametrize("address", ["localhost", "http://a:1", "grpc://a", "grpc://a:1,b:2"])
def test_an_invalid_data_service_address_is_refused(bars: Path, address: str) -> None:
    params = dataclasses.replace(PARAMS, data_service=address)
    wrong = address.split(",")[-1]
    with pytest.raises(InputError, match=f"--data_service={wrong}: expected grpc://HOST:PORT"):
        first_batches(open_data(str(bars)), params, 0)


def test_augmentation_of_texts_is_refused(tmp_path: Path) -> None:
    examples = (["a b", "c d"] * 10, [0, 1] * 10)
    texts = source_of_arrays("texts", {"train": examples, "test": examples}, ())
    store(texts, str(tmp_path / "data"), Storage())
    data = open_data(str(tmp_path / "data"))
    params = dataclasses.replace(PARAMS, augmentation=PAD_CROP_FLIP)
    with pytest.raises(InputError, match=r"--augmentation=pad_crop_flip: is for images"):
        training_rows(data, params, 0, 1, 0)
    tokens, _ = next(training_rows(data, PARAMS, 0, 1, 0).as_numpy_iterator())
    assert tokens.shape == (BATCH, 128)
    assert tokens.dtype == np.int32
