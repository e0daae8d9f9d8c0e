"""How examples of large datasets are mixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.shuffle import correlation_of_neighbours, read_epochs, write_numbers
from tpu_training.data import shards

pytestmark = pytest.mark.usefixtures("cluster")


def test_neighbours_of_an_epoch_are_far_apart_in_the_next_one(tmp_path: Path) -> None:
    """In a set ten times the window, of files as small as `data convert` writes them."""
    shards = write_numbers(tmp_path, 20_000, files=200)
    orders = read_epochs(shards, window=2000, batch=250, epochs=3)
    for order in orders:
        assert sorted(order) == list(range(20_000))
    assert abs(correlation_of_neighbours(orders)) < 0.1
    # Windows of a quarter of a file: neighbours stay together.
    assert correlation_of_neighbours(read_epochs(shards, 25, batch=250, epochs=2)) > 0.1


@pytest.mark.parametrize(
    ("files", "batch", "lanes"),
    [
        (5, 1024, 1),  # Each further one reads a file twice.
        (40, 64, 4),
        (512, 1024, 32),
        (512, 768, 48),
        (8192, 1024, 64),
        (8192, 768, 96),
        (8192, 250, 2),
        (8192, 32_768, 512),
    ],
)
def test_lanes_are_for_many_hosts_and_few_files_are_read_twice(
    files: int, batch: int, lanes: int
) -> None:
    assert shards._lanes(files, batch) == lanes


def test_the_measure_tells_a_shuffle_from_a_fixed_order() -> None:
    generator = np.random.default_rng(0)
    shuffled = [generator.permutation(20_000) for _ in range(2)]
    assert abs(correlation_of_neighbours(shuffled)) < 0.03
    assert correlation_of_neighbours([np.arange(1000)] * 2) == pytest.approx(1.0)
