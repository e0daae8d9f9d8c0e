"""A converted model is refused for what it certainly loses, not for one unlucky example."""

from __future__ import annotations

import math

import pytest

from tpu_training.errors import TrainingError
from tpu_training.serving.export.agreement import Agreement

pytestmark = pytest.mark.training


def refused(accuracy: Agreement) -> str:
    from tpu_training.serving.export.run import _refuse
    from tpu_training.serving.export.tflite import TfliteModel

    try:
        _refuse(TfliteModel("m.tflite", 1, (), accuracy))
    except TrainingError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("examples", "lost", "gained", "is_refused"),
    [
        (60, 1, 0, False),
        (60, 0, 0, False),
        (60, 6, 0, True),
        (360, 5, 0, False),
        (360, 30, 26, False),
        (6000, 100, 0, True),
        (6000, 60, 0, False),
        (6000, 60, 55, False),
    ],
)
def test_only_a_loss_that_is_certain_is_refused(
    examples: int, lost: int, gained: int, is_refused: bool
) -> None:
    assert bool(refused(Agreement(examples, examples // 2, lost, gained))) == is_refused


def test_the_message_has_the_number_of_examples_and_the_bounds() -> None:
    message = refused(Agreement(60, 57, 6, 0))
    assert (
        "int8 loses 6 and gains 0 of 60 test examples: 10.00 points of accuracy (from 0.9500 to "
        "0.8500), with 95 % confidence at least 2.96 and at most 16.40, more than 1" in message
    )


def test_the_bounds_hold_the_true_loss_in_95_of_100_draws() -> None:
    """Exactly, over all outcomes: three kinds of examples with probabilities of their own."""
    examples, p_lost, p_gained = 60, 0.05, 0.02
    true = 100 * (p_lost - p_gained)
    missed = 0.0
    for lost in range(30):
        for gained in range(30 - lost):
            rest = examples - lost - gained
            ways = math.comb(examples, lost) * math.comb(examples - lost, gained)
            chance = ways * p_lost**lost * p_gained**gained * (1 - p_lost - p_gained) ** rest
            missed += chance * (Agreement(examples, 30, lost, gained).bounds[0] > true)
    assert 0.0 < missed < 0.06
