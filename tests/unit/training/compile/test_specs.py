"""A dataset that does not exist yet, described on the command line."""

from __future__ import annotations

import pytest

from tpu_training.compile.session import described_data
from tpu_training.errors import InputError


def test_images_are_described_by_their_shape_and_classes() -> None:
    spec = described_data("224x224x3", 1000).spec
    assert (spec.kind, spec.shape, spec.dtype, spec.classes) == (
        "image",
        (224, 224, 3),
        "uint8",
        1000,
    )


def test_texts_are_described_by_their_length_vocabulary_and_classes() -> None:
    spec = described_data("512", 2, 30522).spec
    assert (spec.kind, spec.shape, spec.dtype, spec.vocabulary) == ("text", (512,), "int32", 30522)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("224", 2), ["--vocabulary=0: a text of --shape=224 tokens needs"]),
        (
            ("224x224x3", 2, 100),
            ["--vocabulary=100: images of --shape=224x224x3 have no vocabulary"],
        ),
        (("224x224", 0), ["--shape=224x224: expected HEIGHTxWIDTHxCHANNELS", "--classes=0: must"]),
        (("0", 2, 100), ["--shape=0: expected"]),
        (("-3x4x1", 2), ["--shape=-3x4x1: expected"]),
    ],
)
def test_all_problems_of_the_data_are_reported_at_once(
    arguments: tuple[str, int], messages: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        described_data(*arguments)
    assert all(message in str(caught.value) for message in messages)
    assert str(caught.value).count("--") >= len(messages)
