"""A converted model that loses too much accuracy is refused."""

from __future__ import annotations

import pytest

from tpu_training.errors import TrainingError
from tpu_training.serving.export import check_written

pytestmark = pytest.mark.training


def test_a_loss_of_more_than_a_point_is_refused_with_the_number_of_examples() -> None:
    assert "int8 loses 0.50 points" in check_written("m.tflite", [], 360, 0.95, 0.945)
    with pytest.raises(TrainingError) as caught:
        check_written("m.tflite", [], 60, 0.95, 0.85)
    assert (
        "int8 loses 10.00 points of accuracy on 60 test examples (from 0.9500 to 0.8500), "
        "more than 1" in str(caught.value)
    )
