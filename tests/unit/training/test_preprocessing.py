"""Images as models take them: static shapes, and the same random treatment for the same step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.data import preprocessing
from tpu_training.data.arrays import source_of_arrays
from tpu_training.data.conversion import Storage, store
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import evaluation_rows, training_rows
from tpu_training.data.source import IMAGE, Options, Source, pick, split_at_random
from tpu_training.errors import InputError
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


def test_more_hosts_than_rows_of_a_batch_are_refused(bars: Path) -> None:
    with pytest.raises(InputError, match="a batch of 8 examples has none for some of 9 hosts"):
        training_rows(open_data(str(bars)), PARAMS, 0, 9, 0)


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
