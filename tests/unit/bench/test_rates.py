"""What a suggested learning rate loses to the best of a grid."""

from __future__ import annotations

import pytest

from bench.rows.rates import results
from bench.trainer.rates import Tried

GRID = {0.01: 0.9, 0.1: 0.95}


def test_a_suggestion_loses_what_the_best_of_the_grid_has_more() -> None:
    assert Tried("a", GRID, 0.05, 0.93).lost == pytest.approx(2.0)
    assert Tried("a", GRID, 0.05, 0.97).lost == 0.0


def test_the_worst_pair_counts_and_one_without_a_suggestion_is_told() -> None:
    tried = [Tried("a", GRID, 0.05, 0.93), Tried("b", GRID, 0.1, 0.95), Tried("c", GRID, None)]
    most, without = results(tried)
    assert most.value == pytest.approx(2.0)
    assert not most.holds
    assert without.value == 1
    assert results(tried[1:])[0].holds
