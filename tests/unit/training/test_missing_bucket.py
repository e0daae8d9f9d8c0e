"""TensorFlow's makedirs never returns in a bucket that does not exist: it is asked for first."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tpu_training.data import files
from tpu_training.errors import InputError

pytestmark = pytest.mark.training

NO_BUCKET = "HTTP response code 404 with body 'The specified bucket does not exist.'"
NO_OBJECT = "Object not found"


def refuse_with(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    def refuse(*_: object) -> None:
        raise tf.errors.NotFoundError(None, None, message)

    monkeypatch.setattr(tf.io.gfile, "GFile", refuse)


def test_a_model_directory_in_a_missing_bucket_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_with(monkeypatch, NO_BUCKET)
    with pytest.raises(InputError, match="--model-dir=gs://nope/jobs/a: there is no bucket nope;"):
        files.check_bucket("gs://nope/jobs/a", "--model-dir")


def test_an_empty_folder_of_a_bucket_and_a_local_one_are_fine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_with(monkeypatch, NO_OBJECT)
    files.check_bucket("gs://there/jobs/a", "--model-dir")
    files.check_bucket("/nowhere", "--model-dir")


def test_a_file_in_a_missing_bucket_is_not_taken_for_a_missing_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_with(monkeypatch, NO_OBJECT)
    assert files.read_text("gs://there/a") is None
    refuse_with(monkeypatch, NO_BUCKET)
    with pytest.raises(tf.errors.NotFoundError):
        files.read_text("gs://nope/a")
