"""Mixup and CutMix: what is mixed, and that the labels are mixed alike."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.unit.training.test_train_loop import PROBE
from tpu_training.data.data_set import open_data
from tpu_training.errors import InputError
from tpu_training.loop.state import Mix, _beta_quantiles, create_mix, create_train_state
from tpu_training.loop.step import Replica, create_replica_step, create_step_sums
from tpu_training.models.params import Params
from tpu_training.models.spec import DataSpec
from tpu_training.models.step_context import step_context

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

SPEC = DataSpec("image", (8, 10, 1), "uint8", 3)
IMAGES = np.stack([np.full((8, 10, 1), grey, np.uint8) for grey in (0, 50, 100, 200)])


def mixed(mix: Mix | None, seed: int, images: npt.NDArray[Any] = IMAGES) -> tuple[Any, float]:
    assert mix
    with step_context(tf.constant([seed, 0])):
        result, share = mix(tf.constant(images))
    assert result.dtype == images.dtype
    return result.numpy(), float(share)


def test_mixup_mixes_each_image_with_its_opposite_by_the_share_of_its_label(
    one_device: Cluster,
) -> None:
    mix = create_mix(Params(mixup=1.0), SPEC)
    shares = set()
    for seed in range(5):
        images, share = mixed(mix, seed)
        expected = share * IMAGES.astype(float) + (1 - share) * IMAGES[::-1]
        assert np.abs(images - expected).max() <= 0.51
        shares.add(share)
    assert len(shares) == 5
    assert mixed(mix, 3)[1] == mixed(mix, 3)[1], "the same step is repeated"


def test_cutmix_puts_a_box_of_the_opposite_image_into_each_and_shares_the_label_by_area(
    one_device: Cluster,
) -> None:
    mix = create_mix(Params(cutmix=1.0), SPEC)
    for seed in range(8):
        images, share = mixed(mix, seed)
        own = images == IMAGES
        assert own.mean() == pytest.approx(share)
        assert np.array_equal(np.where(own, IMAGES, IMAGES[::-1]), images)
        rows, columns = np.where(~own[0, :, :, 0])
        if len(rows):
            box = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
            assert box == len(rows), "a box"


def test_with_both_half_of_the_parts_are_mixed_in_each_way(one_device: Cluster) -> None:
    mix = create_mix(Params(mixup=1.0, cutmix=1.0), SPEC)
    cut = [set(np.unique(mixed(mix, seed)[0])) <= {0, 50, 100, 200} for seed in range(30)]
    assert 8 <= sum(cut) <= 22


def test_floating_numbers_are_mixed_without_rounding(one_device: Cluster) -> None:
    images, share = mixed(create_mix(Params(mixup=1.0), SPEC), 1, IMAGES.astype(np.float32))
    assert images[0, 0, 0, 0] == pytest.approx(200 * (1 - share), rel=1e-5)


@pytest.mark.parametrize(("alpha", "variance"), [(0.2, 1 / 5.6), (1.0, 1 / 12), (4.0, 1 / 36)])
def test_shares_are_distributed_as_beta_says(alpha: float, variance: float) -> None:
    quantiles = _beta_quantiles(alpha)
    assert np.all(np.diff(quantiles) >= 0)
    assert quantiles.mean() == pytest.approx(0.5, abs=1e-3)
    assert quantiles.var() == pytest.approx(variance, rel=0.01)


@pytest.mark.parametrize(
    "spec",
    [
        DataSpec("text", (8,), "int32", 2, vocabulary=9),
        DataSpec("image", (8, 8, 1), "uint8", 2, targets="mask"),
    ],
)
def test_mixup_refuses_targets_without_one_label_per_example(spec: DataSpec) -> None:
    with pytest.raises(InputError, match=r"^--mixup: for images with one label each"):
        create_mix(Params(mixup=0.2), spec)


def test_the_loss_is_that_of_both_labels_by_their_shares(one_device: Cluster, bars: Path) -> None:
    manifest = open_data(str(bars)).manifest
    params = Params(global_batch_size=4, mixup=1.0)
    state = create_train_state(one_device, PROBE, params, manifest, 10)
    seen: list[tuple[tf.Tensor, tf.Tensor]] = []
    mix = state.mix
    assert mix

    def noted(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seen.append(mix(images))
        return seen[-1]

    state = dataclasses.replace(state, mix=noted)
    sums = create_step_sums(state)
    replica = Replica(tf.constant(0), 1, lambda values: values)
    step = create_replica_step(params, state, sums, lambda: replica)
    noise = tf.random.stateless_uniform((4, 28, 28, 1), (1, 2), 0, 255, tf.int32)
    labels = tf.constant([1, 2, 3, 4])
    before = [variable.numpy() for variable in state.model.variables]
    step(tf.cast(noise, tf.uint8), labels)
    for variable, value in zip(state.model.variables, before, strict=True):
        variable.assign(value)
    ((inputs, share),) = seen
    logits = state.model(inputs, training=False)
    soft = share * tf.one_hot(labels, 10) + (1.0 - share) * tf.one_hot(labels[::-1], 10)
    expected = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(soft, logits))
    assert float(sums.numbers[1 + len(state.variables)]) == pytest.approx(float(expected), rel=1e-5)
