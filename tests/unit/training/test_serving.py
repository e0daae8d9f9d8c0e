from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tpu_training
from tpu_training.__main__ import main
from tpu_training.data.manifest import parse_manifest
from tpu_training.data.tokenizer import WordPiece

pytestmark = pytest.mark.training


def test_a_model_of_texts_predicts_like_one_of_images(
    reviews: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, export = reviews / "reviews", ["export", f"--model-dir={reviews}/results"]
    assert main([*export, f"--output={tmp_path}/x"]) == 0
    (step,) = (tmp_path / "x").iterdir()
    predict = tf.saved_model.load(str(step)).signatures["serving_default"]
    tokenizer = WordPiece((data / "vocabulary.txt").read_text().splitlines())
    texts = (
        "the seat was dull but the film was clever",
        "the film was not good but the seat was good",
    )
    ids = np.array([tokenizer.encode(text, 16) for text in texts], np.int32)
    outputs = predict(token_ids=tf.constant(ids))
    liked = parse_manifest((data / "manifest.json").read_text(), "").class_names.index("liked")
    assert [number == liked for number in outputs["classes"].numpy()] == [True, False]
    assert outputs["names"].numpy().tolist() == [b"liked", b"disliked"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"is not in \[0, {tokenizer.size}\)"):
        predict(token_ids=tf.fill((1, 16), tokenizer.size))
    found = tpu_training.predict(f"{reviews}/results", str(data))
    assert tpu_training.evaluate(f"{reviews}/results", str(data))["accuracy"] == 1.0
    assert found["classes"].shape == (2048,)
    capsys.readouterr()
    assert main([*export, f"--output={tmp_path}/y", "--format=tflite"]) == 2
    assert "--format=tflite is for image models" in capsys.readouterr().err
    assert not (tmp_path / "y").exists()
