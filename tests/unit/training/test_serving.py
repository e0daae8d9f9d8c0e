from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_training.__main__ import main
from tpu_training.data.conversion import Tokenizer
from tpu_training.data.manifest import parse_manifest
from tpu_training.serving.export import export_saved_model
from tpu_training.serving.model import Predictor, restore_model

pytestmark = pytest.mark.training

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)


@pytest.fixture(scope="module")
def saved_model(digits_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("saved")
    export_saved_model(restore_model(str(digits_model)), str(output), None)
    return output


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_model_of_texts_predicts_like_one_of_images(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, export = reviews / "reviews", ["export", f"--model-dir={reviews}/results"]
    assert main([*export, f"--output={tmp_path}/x"]) == 0
    predictor = Predictor(str(tmp_path / "x"))
    assert (predictor.name, predictor.example_shape) == ("token_ids", (16,))
    tokenizer = Tokenizer((data / "vocabulary.txt").read_text().splitlines())
    texts = (
        "the seat was dull but the film was clever",
        "the film was not good but the seat was good",
    )
    outputs = predictor.predict(np.array([tokenizer.encode(text, 16) for text in texts]))
    liked = parse_manifest((data / "manifest.json").read_text(), "").class_names.index("liked")
    assert [number == liked for number in outputs["classes"]] == [True, False]
    assert outputs["names"].tolist() == ["liked", "disliked"]
    with pytest.raises(ValueError, match=rf"is not in \[0, {tokenizer.size}\)"):
        predictor.predict(np.full((1, 16), tokenizer.size))
    with pytest.raises(ValueError, match=r"has the shape \(3,\), the model takes \(16,\)"):
        predictor.predict(np.zeros((1, 3)))
    predict = ["predict", f"--saved-model={tmp_path}/x", f"--output={tmp_path}/p.jsonl", "--input"]
    assert main([*predict, str(data)]) == 0
    assert "predict finished examples=2048 accuracy=1.0000" in capsys.readouterr().out
    first = lines_of(tmp_path / "p.jsonl")[0]
    keys = {"classes", "names", "probabilities"}
    assert set(first) == {"example", "targets", "target_names"} | keys
    assert first["names"] == first["target_names"]
    assert (first["target_names"] == "liked") == (first["targets"] == liked)
    assert main([*predict, f"{reviews}/reviews.csv"]) == 2
    assert "takes token_ids of the shape (16,), not images" in capsys.readouterr().err


def test_a_data_set_is_predicted_with_its_labels(
    digits: Path, saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", f"--saved-model={saved_model}", "--input", str(digits)]
    assert main([*arguments, f"--output={tmp_path}/p.jsonl"]) == 0
    assert "predict finished examples=360 accuracy=0.9" in capsys.readouterr().out
    rows = lines_of(tmp_path / "p.jsonl")
    assert [row["example"] for row in rows] == [f"test/{number}" for number in range(360)]
    assert sum(row["classes"] == row["targets"] for row in rows) > 0.9 * 360
    assert sum(rows[0]["probabilities"]) == pytest.approx(1.0, abs=1e-4)
    assert main([*arguments, f"--output={tmp_path}/p.csv"]) == 2
    assert "expected NAME.jsonl" in capsys.readouterr().err


def test_image_files_of_any_size_are_predicted(
    saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, size in (("a.png", 28), ("b.png", 56)):
        picture = tf.image.resize(IMAGES[0], (size, size), method="nearest")
        (folder / name).write_bytes(tf.io.encode_png(tf.cast(picture, tf.uint8)).numpy())
    (folder / "notes.txt").write_text("no picture")
    predict = ["predict", f"--saved-model={saved_model}", f"--output={tmp_path}/p.jsonl"]
    assert main([*predict, "--input", str(folder), str(folder / "a.png")]) == 0
    rows = lines_of(tmp_path / "p.jsonl")
    assert [Path(row["example"]).name for row in rows] == ["a.png", "b.png", "a.png"]
    assert rows[0]["classes"] == rows[2]["classes"]
    capsys.readouterr()
    assert main([*predict, "--input", str(folder / "notes.txt")]) == 2
    assert "notes.txt: is not an image" in capsys.readouterr().err
    assert main([*predict, "--input", str(tmp_path / "none.png")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_directory_without_a_saved_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["predict", f"--input={tmp_path}", f"--output={tmp_path}/p.jsonl"]
    assert main([*ask, f"--saved-model={tmp_path}"]) == 2
    assert "neither a saved_model.pb nor a numbered version" in capsys.readouterr().err
    assert main([*ask, f"--saved-model={tmp_path}/x"]) == 2
    assert "there is no such directory" in capsys.readouterr().err
