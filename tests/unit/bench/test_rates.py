"""What a suggested learning rate loses to the best of a grid."""

from __future__ import annotations

import pytest

from bench.programs import Tried, lost_points, train_grid

# What is under test comes with TensorFlow.
pytestmark = pytest.mark.training

GRID = {0.01: 0.9, 0.1: 0.95}


def test_a_suggestion_loses_what_the_best_of_the_grid_has_more() -> None:
    assert Tried("a", GRID, 0.05, 0.93).lost == pytest.approx(2.0)
    assert Tried("a", GRID, 0.05, 0.97).lost == 0.0


def test_the_worst_pair_counts_and_one_without_a_suggestion_is_told() -> None:
    tried = [Tried("a", GRID, 0.05, 0.93), Tried("b", GRID, 0.1, 0.95), Tried("c", GRID, None)]
    most, without = lost_points(tried)
    assert most.value == pytest.approx(2.0)
    assert not most.holds
    assert without.value == 1
    assert lost_points(tried[1:])[0].holds


def test_only_what_comes_close_to_the_best_is_trained_again() -> None:
    answers = {0.001: [0.5], 0.01: [0.93, 0.96, 0.99], 0.1: [0.95, 0.89, 0.95]}
    grid = train_grid(list(answers), lambda rate: answers[rate].pop(0))
    assert grid == pytest.approx({0.001: 0.5, 0.01: 0.96, 0.1: 0.93})
    assert not any(answers.values())
