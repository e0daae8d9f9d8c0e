from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import requests
import tensorflow as tf

from tpu_training.__main__ import main
from tpu_training.commands import LOOPBACK
from tpu_training.data.manifest import parse_manifest
from tpu_training.data.text import Tokenizer
from tpu_training.serving.export import export_saved_model
from tpu_training.serving.model import restore_model
from tpu_training.serving.prediction import Predictor, TensorInfo
from tpu_training.serving.server import Answer, RestApi, create_server

pytestmark = pytest.mark.training

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)


@pytest.fixture(scope="module")
def saved_model(digits_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("saved")
    export_saved_model(restore_model(str(digits_model)), str(output), None)
    return output


@pytest.fixture(scope="module")
def predictor(saved_model: Path) -> Predictor:
    return Predictor(str(saved_model))


@pytest.fixture(scope="module")
def url(predictor: Predictor) -> Iterator[str]:
    """Where a real server answers for the model `digits`."""
    with create_server(RestApi("digits", predictor), LOOPBACK, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{LOOPBACK}:{server.server_port}/v1/models/digits"
        server.shutdown()
        thread.join()


AS_JSON = {"Content-Type": "application/json"}


def predict(url: str, request: object) -> Any:
    answer = requests.post(f"{url}:predict", json=request, timeout=30)
    assert answer.ok, answer.text
    return answer.json()


def test_rows_and_columns_give_the_model_s_own_answers(url: str, predictor: Predictor) -> None:
    expected = predictor.predict(IMAGES)
    rows = predict(url, {"instances": IMAGES.tolist()})["predictions"]
    assert [row["classes"] for row in rows] == expected["classes"].tolist()
    np.testing.assert_allclose(
        [row["probabilities"] for row in rows], expected["probabilities"], rtol=1e-5
    )
    columns = predict(url, {"inputs": IMAGES.tolist()})["outputs"]
    assert columns["classes"] == expected["classes"].tolist()
    assert np.shape(columns["probabilities"]) == (3, 10)


def test_the_input_may_be_named_and_the_version_given(url: str, predictor: Predictor) -> None:
    plain = predict(url, {"instances": IMAGES.tolist()})
    named = [{"images": image.tolist()} for image in IMAGES]
    versioned = f"{url}/versions/{predictor.version}"
    request = {"signature_name": "serving_default", "instances": named}
    assert predict(versioned, request) == plain
    columns = predict(url, {"inputs": {"images": IMAGES.tolist()}})["outputs"]
    assert columns["classes"] == [row["classes"] for row in plain["predictions"]]


def test_metadata_names_types_as_protocol_buffers_do() -> None:
    halves = TensorInfo("numbers", "float16", (None, 2))
    api = RestApi("m", Mock(version="1", input=halves, outputs=[]))
    assert '"DT_HALF"' in json.dumps(api.answer("GET", "/v1/models/m/metadata", b"").body)


def test_status_and_metadata_are_those_of_tensorflow_serving(
    url: str, predictor: Predictor
) -> None:
    status = requests.get(url, timeout=30).json()["model_version_status"]
    assert status == [
        {
            "version": predictor.version,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
    ]
    metadata = requests.get(f"{url}/metadata", timeout=30).json()
    assert metadata["model_spec"]["name"] == "digits"
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    images = signature["inputs"]["images"]
    assert images["dtype"] == "DT_UINT8"
    assert [size["size"] for size in images["tensor_shape"]["dim"]] == ["-1", "28", "28", "1"]
    assert set(signature["outputs"]) == {"probabilities", "classes"}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (":predict", b"{", 400, "JSON Parse error"),
        (":predict", b"[]", 400, "not an object"),
        (":predict", b"{}", 400, "either 'instances'"),
        (":predict", b'{"instances": []}', 400, "at least one example"),
        (":predict", b'{"instances": [[1, 2]]}', 400, "the model takes (28, 28, 1)"),
        (":predict", b'{"instances": 7}', 400, "must be a list"),
        (":predict", b'{"instances": [[1], [1, 2]]}', 400, "images: "),
        (":predict", b'{"instances": [{"image": 1}]}', 400, "one input, 'images'"),
        (":predict", b'{"inputs": "x"}', 400, "numbers of type uint8"),
        (
            ":predict",
            b'{"inputs": [[[[256]]]]}',
            400,
            "of the shape nx28x28x1",
        ),
        (":predict", b'{"inputs": [], "signature_name": "x"}', 400, "not found in signature def"),
        ("/versions/999:predict", b"{}", 404, "Servable not found for request: 999(digits)"),
        ("/labels/stable:predict", b"{}", 404, "Servable not found for request: stable(digits)"),
        ("s:predict", b"{}", 404, "Servable not found for request: Latest(digitss)"),
        (":classify", b"{}", 404, "Malformed request: POST"),
    ],
)
def test_a_wrong_request_is_answered_with_an_error_in_json(
    url: str, path: str, body: bytes, status: int, words: str
) -> None:
    answer = requests.post(f"{url}{path}", data=body, headers=AS_JSON, timeout=30)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_a_model_of_texts_is_served_and_predicted_like_one_of_images(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, export = reviews / "reviews", ["export", f"--model-dir={reviews}/results"]
    assert main([*export, f"--output={tmp_path}/x"]) == 0
    predictor = Predictor(str(tmp_path / "x"))
    assert predictor.input == TensorInfo("token_ids", "int32", (None, 16))
    tokenizer = Tokenizer((data / "vocabulary.txt").read_text().splitlines())
    texts = ("the seat was dull but the film was clever", "the seat was good the film was not good")
    api = RestApi("reviews", predictor)

    def ask(token_ids: list[list[int]]) -> Answer:
        body = json.dumps({"instances": token_ids}).encode()
        return api.answer("POST", "/v1/models/reviews:predict", body)

    answer = ask([tokenizer.encode(text, 16) for text in texts])
    liked = parse_manifest((data / "manifest.json").read_text(), "").class_names.index("liked")
    assert [row["classes"] == liked for row in answer.body["predictions"]] == [True, False]
    assert [row["names"] for row in answer.body["predictions"]] == ["liked", "disliked"]
    assert json.loads(json.dumps(answer.body)) == answer.body
    metadata = api.answer("GET", "/v1/models/reviews/metadata", b"").body["metadata"]
    signature = metadata["signature_def"]["signature_def"]["serving_default"]
    assert signature["outputs"]["names"]["dtype"] == "DT_STRING"
    refused = ask([[tokenizer.size] * 16])
    assert (refused.status, "is not in [0, 96)" in refused.body["error"]) == (400, True)
    predict = ["predict", f"--saved-model={tmp_path}/x", f"--output={tmp_path}/p.csv", "--input"]
    assert main([*predict, str(data)]) == 0
    assert "predict finished examples=2048 accuracy=1.0000" in capsys.readouterr().out
    first = next(csv.DictReader((tmp_path / "p.csv").open()))
    assert list(first) == ["example", "class", "name", "probability", "label", "label_name"]
    assert first["name"] == first["label_name"] in ("liked", "disliked")
    assert main([*predict, f"{reviews}/reviews.csv"]) == 2
    assert "takes token_ids of the shape (16,), not images" in capsys.readouterr().err
    assert main([*export, f"--output={tmp_path}/y", "--format=tflite"]) == 2
    assert "--format=tflite is for image models" in capsys.readouterr().err
    assert not (tmp_path / "y").exists()


def test_a_data_set_is_predicted_with_its_labels(
    digits: Path, saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", f"--saved-model={saved_model}", "--input", str(digits)]
    assert main([*arguments, f"--output={tmp_path}/p.csv"]) == 0
    assert "predict finished examples=360 accuracy=0.9" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert len(rows) == 360
    assert rows[0]["example"] == "test/0"
    right = sum(row["class"] == row["label"] for row in rows)
    assert main([*arguments, f"--output={tmp_path}/p.jsonl"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert sum(line["class"] == line["label"] for line in lines) == right
    assert sum(lines[0]["probabilities"]) == pytest.approx(1.0, abs=1e-4)


def test_image_files_of_any_size_are_predicted(
    saved_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, size in (("a.png", 28), ("b.png", 56)):
        picture = tf.image.resize(IMAGES[0], (size, size), method="nearest")
        (folder / name).write_bytes(tf.io.encode_png(tf.cast(picture, tf.uint8)).numpy())
    (folder / "notes.txt").write_text("no picture")
    predict = ["predict", f"--saved-model={saved_model}", f"--output={tmp_path}/p.csv"]
    assert main([*predict, "--input", str(folder), str(folder / "a.png")]) == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [Path(row["example"]).name for row in rows] == ["a.png", "b.png", "a.png"]
    assert rows[0]["class"] == rows[2]["class"]
    capsys.readouterr()
    assert main([*predict, "--input", str(folder / "notes.txt")]) == 2
    assert "notes.txt: is not an image" in capsys.readouterr().err
    assert main([*predict, "--input", str(tmp_path / "none.png")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_directory_without_a_saved_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["serve", f"--saved-model={tmp_path}", "--port=0"]
    assert main(arguments) == 2
    assert "neither a saved_model.pb nor a numbered version" in capsys.readouterr().err
    assert main(["serve", f"--saved-model={tmp_path}/x", "--port=0"]) == 2
    assert "there is no such directory" in capsys.readouterr().err
