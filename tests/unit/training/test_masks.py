"""Images and their masks are cropped, flipped and resized together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tpu_training.data.arrays import source_of_arrays
from tpu_training.data.conversion import Storage, store
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import evaluation_rows, training_rows
from tpu_training.models.params import PAD_CROP_FLIP, RESIZED_CROP_FLIP, Params

pytestmark = pytest.mark.usefixtures("cluster")

SIDE, LEVELS = 32, 50
Array = npt.NDArray[Any]


@pytest.fixture(params=["raw", "encoded"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> DataSet:
    """Images of stripes, whose grey is 50 times the class that their masks say."""
    columns = np.arange(SIDE) // 8
    masks = np.stack([np.roll(columns, 5 * n)[None].repeat(SIDE, 0) for n in range(16)])
    images = (LEVELS * (1 + masks)).astype(np.uint8)[..., None]
    splits = {"train": (images, masks), "test": (images, masks)}
    store(source_of_arrays("s", splits, ()), str(tmp_path / "d"), Storage(request.param))
    return open_data(str(tmp_path / "d"))


def read(data: DataSet, **settings: object) -> tuple[Array, Array]:
    """The images, and the masks as the images' greys; 0 for what is not counted."""
    params = Params(global_batch_size=16, evaluation_batch_size=16, **settings)  # type: ignore[arg-type]
    ((images, masks),) = training_rows(data, params, 0, 1, 0).take(1).as_numpy_iterator()
    assert masks.dtype == np.int32
    return images[..., 0].astype(int), LEVELS * (1 + masks)


def test_a_padded_crop_and_its_flip_move_image_and_mask_alike(data: DataSet) -> None:
    images, masks = read(data, augmentation=PAD_CROP_FLIP)
    np.testing.assert_array_equal(images, masks)
    framed = [(image == 0).any() for image in images]
    assert any(framed)
    steps = np.diff(np.where(images > 0, images, LEVELS), axis=2)
    assert (steps == LEVELS).any()
    assert len({image.tobytes() for image in images}) > 8


@pytest.mark.parametrize("size", [0, 48])
def test_a_resized_crop_takes_the_nearest_pixel_s_class(data: DataSet, size: int) -> None:
    images, masks = read(data, augmentation=RESIZED_CROP_FLIP, image_size=size)
    assert images.shape == masks.shape == (16, size or SIDE, size or SIDE)
    assert set(np.unique(masks)) <= {LEVELS * (1 + n) for n in range(4)}
    # Only at the stripes' borders the image is a mixture.
    assert (np.abs(images - masks) <= LEVELS // 2 + 1).mean() > 0.98
    assert (images == masks).mean() > 0.7


def test_an_evaluation_at_another_size_takes_the_centre_of_both(data: DataSet) -> None:
    params = Params(evaluation_batch_size=16, image_size=16)
    ((images, masks, _),) = evaluation_rows(data, params, 1, 0).as_numpy_iterator()
    assert images.shape == (16, 16, 16, 1)
    assert masks.shape == (16, 16, 16)
    greys = LEVELS * (1 + masks)
    assert (np.abs(images[..., 0].astype(int) - greys) <= LEVELS).mean() > 0.95
    assert (images[..., 0] == greys).mean() > 0.5


def test_without_augmentation_nothing_moves(data: DataSet) -> None:
    images, masks = read(data)
    np.testing.assert_array_equal(images, masks)
