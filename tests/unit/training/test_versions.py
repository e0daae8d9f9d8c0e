from __future__ import annotations

import logging

import pytest
import tensorflow as tf

from tpu_training.cluster.cluster import _warn_of_other_version
from tpu_training.cluster.endpoint import Addresses

pytestmark = pytest.mark.training

MAJOR, MINOR = tf.__version__.split(".")[:2]


@pytest.mark.parametrize(
    ("theirs", "warned"),
    [
        (f"{MAJOR}.{MINOR}", False),
        (f"{MAJOR}.{MINOR}.99", False),
        (f"{MAJOR}.{int(MINOR) + 1}.0", True),
        (None, False),
    ],
)
def test_another_minor_version_on_the_tpu_is_warned_of_and_another_patch_is_not(
    caplog: pytest.LogCaptureFixture, theirs: str | None, warned: bool
) -> None:
    with caplog.at_level(logging.WARNING, logger="tpu_training.cluster.cluster"):
        _warn_of_other_version(Addresses(("127.0.0.1:1",), "--tpu=a", theirs))
    assert ("operations are missing" in caplog.text) == warned
