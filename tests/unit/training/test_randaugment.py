"""RandAugment: each of its changes, drawn for each image and repeated with the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.loop.randaugment import COUNT, change, create_augment
from tpu_training.models.params import Params
from tpu_training.models.spec import DataSpec
from tpu_training.models.step_context import step_context

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

Array = npt.NDArray[np.float32]
RAMP = np.linspace(20, 220, 10 * 10 * 3).reshape(1, 10, 10, 3).astype(np.float32)
GREY = (RAMP * np.array((0.2989, 0.587, 0.114), np.float32)).sum(axis=3, keepdims=True)


def changed(kind: int, level: float, image: Array = RAMP) -> Array:
    result: Array = change(tf.constant(image), tf.constant([kind]), tf.constant([level])).numpy()
    return result


def blended(plain: Any, level: float) -> Array:
    result: Array = np.clip(plain + (1 + 0.9 * level) * (RAMP - plain), 0, 255)
    return result


def stretched() -> Array:
    low, high = (edge(RAMP, axis=(1, 2), keepdims=True) for edge in (np.min, np.max))
    result: Array = (RAMP - low) * 255 / (high - low)
    return result


@pytest.mark.parametrize(
    ("kind", "level", "expected"),
    [
        (3, 1.0, np.pad(RAMP, ((0, 0), (0, 0), (0, 3), (0, 0)))[:, :, 3:]),
        (4, -1.0, np.pad(RAMP, ((0, 0), (3, 0), (0, 0), (0, 0)))[:, :10]),
        (5, 0.5, stretched()),
        (6, 0.5, np.where(RAMP < 128, RAMP, 255 - RAMP)),
        (7, 0.5, np.floor(RAMP / 4) * 4),
        (8, -1.0, blended(GREY, -1.0)),
        (9, 0.7, blended(GREY.mean(), 0.7)),
        (10, -0.5, RAMP * 0.55),
        (13, 1.0, RAMP),
    ],
    ids=[
        *("shift_x", "shift_y", "autocontrast", "solarize", "posterize"),
        *("color", "contrast", "brightness", "none"),
    ],
)
def test_a_change_is_what_its_paper_says(
    one_device: Cluster, kind: int, level: float, expected: Array
) -> None:
    assert changed(kind, level) == pytest.approx(expected, abs=1e-2)


def test_equalizing_gives_what_pillow_gives(one_device: Cluster) -> None:
    """Of pictures with many levels, with one only, and with one that has half of the pixels."""
    image = pytest.importorskip("PIL.Image", reason="an optional library")
    ops = pytest.importorskip("PIL.ImageOps")
    drawn = np.random.default_rng(0).normal(90, 20, (3, 40, 50, 3)) + np.arange(50)[:, None] * 2
    pictures = np.clip(drawn, 0, 255).astype(np.uint8)
    pictures[1], pictures[2, :20] = 7, 9
    for picture in pictures:
        expected = np.asarray(ops.equalize(image.fromarray(picture)))
        found = changed(12, 1.0, picture[np.newaxis].astype(np.float32))[0]
        np.testing.assert_array_equal(found, expected)


def test_turning_moves_a_corner_by_the_angle_and_shearing_moves_rows_apart(
    one_device: Cluster,
) -> None:
    image = np.zeros((1, 21, 21, 1), np.float32)
    image[0, 10, 18] = 255.0
    turned = np.argwhere(changed(0, 1.0, image)[0, :, :, 0])
    angle = np.degrees(np.arctan2(*(turned.mean(axis=0) - 10)))
    assert abs(angle) == pytest.approx(30, abs=6)
    line = np.zeros((1, 21, 21, 1), np.float32)
    line[0, :, 10] = 255.0
    sheared = changed(1, 1.0, line)[0, :, :, 0].argmax(axis=1)
    assert abs(int(sheared[0]) - int(sheared[20])) == pytest.approx(0.3 * 20, abs=1)
    assert changed(2, 1.0, line)[0, :, 10].min() == 255.0, "columns move along themselves"


def test_sharpening_enhances_an_edge_and_its_opposite_smooths_it(one_device: Cluster) -> None:
    edge = np.full((1, 6, 6, 1), 100.0, np.float32)
    edge[0, :, 3:] = 150.0
    assert changed(11, 1.0, edge)[0, 3, 3, 0] > 150.0
    assert 100.0 < changed(11, -1.0, edge)[0, 3, 3, 0] < 150.0


def test_images_are_changed_one_by_one_and_alike_when_a_step_is_repeated(
    one_device: Cluster,
) -> None:
    augment = create_augment(Params(randaugment=2), DataSpec("image", (10, 10, 3), "uint8", 3))
    assert augment
    images = tf.constant(np.repeat(RAMP, 40, axis=0).astype(np.uint8))

    def draw(seed: int) -> npt.NDArray[np.uint8]:
        with step_context(tf.constant([seed, 0])):
            result = augment(images)
        assert result.dtype == tf.uint8
        array: npt.NDArray[np.uint8] = result.numpy()
        return array

    assert np.array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))
    assert len({image.tobytes() for image in draw(1)}) > COUNT


def test_texts_are_not_changed() -> None:
    with pytest.raises(InputError, match="--randaugment=2: is for images"):
        create_augment(Params(randaugment=2), DataSpec("text", (8,), "int32", 2, vocabulary=9))
