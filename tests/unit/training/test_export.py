from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import tpu_training
from tests.unit.training import pages
from tpu_training.__main__ import main
from tpu_training.checkpoints.model_description import ModelDescription, read_description
from tpu_training.errors import InputError
from tpu_training.models.spec import DataSpec
from tpu_training.serving.export import unsuitable_tensors
from tpu_training.serving.model import restore_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def loaded(output: Path) -> Any:
    """The signature of the one SavedModel in `output`."""
    (step,) = output.iterdir()
    return tf.saved_model.load(str(step)).signatures["serving_default"]


def test_a_saved_model_takes_bytes_and_gives_the_probabilities_of_the_trained_model(
    digits_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    export = ("export", "--debug", f"--model-dir={digits_model}", f"--output={tmp_path}")
    code, out, _ = run(capsys, *export)
    step = restore_model(str(digits_model)).step
    gc.collect()
    assert code == 0
    assert "unrestored" not in caplog.text, "the optimizer's moments are nobody's loss here"
    assert out.splitlines()[-1] == f"export finished saved_model={tmp_path}/{step}"
    signature = loaded(tmp_path)
    assert signature.structured_input_signature[1]["images"].dtype == "uint8"
    assert signature.structured_input_signature[1]["images"].shape == (None, 28, 28, 1)
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)
    outputs = signature(images=tf.constant(images))
    expected = restore_model(str(digits_model)).predict(tf.constant(images))
    np.testing.assert_allclose(outputs["probabilities"], expected["probabilities"], rtol=1e-4)
    assert outputs["classes"].numpy().tolist() == expected["classes"].numpy().tolist()


def test_a_static_batch_gives_the_same_each_time(
    digits_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for batch in (4, 3):
        output = tmp_path / str(batch)
        run(capsys, "export", f"--model-dir={digits_model}", f"--output={output}", "--batch-size=4")
    images = np.random.default_rng(1).integers(0, 256, (6, 28, 28, 1), np.uint8)
    said = [loaded(tmp_path / str(n))(images=tf.constant(images[:4])) for n in (4, 3)]
    assert said[0]["probabilities"].shape == (4, 10)
    np.testing.assert_allclose(said[0]["probabilities"], said[1]["probabilities"])


def test_int8_loses_less_than_a_point_and_is_reported_as_unchecked(
    digits_model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    code, out, err = run(
        capfd, "export", f"--model-dir={digits_model}", f"--output={tmp_path}", "--format=tflite"
    )
    assert code == 0, err
    assert err == ""
    values = dict(word.split("=") for word in out.splitlines()[-1].split()[2:])
    assert values["examples"] == "360"
    assert float(values["float_accuracy"]) > 0.9
    assert float(values["float_accuracy"]) - float(values["int8_accuracy"]) < 0.01
    assert values["edge_tpu"] == "unchecked"
    content = (tmp_path / "model_int8.tflite").read_bytes()
    assert f"edgetpu_compiler --show_operations {tmp_path}/model_int8.tflite" in caplog.text
    assert unsuitable_tensors(content) == []
    interpreter = tf.lite.Interpreter(model_content=content)
    operations = {details["op_name"] for details in interpreter._get_ops_details()}
    assert {"CONV_2D", "MAX_POOL_2D", "RELU", "SOFTMAX"} <= operations
    for details in (*interpreter.get_input_details(), *interpreter.get_output_details()):
        assert details["dtype"] == np.uint8


def test_tensors_that_the_edge_tpu_does_not_take_are_named(cluster: Cluster) -> None:
    def floats(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(tf.cos(x))

    for batch, words in ((1, "is not an integer"), (None, "is not static")):
        dtype = tf.float32 if batch else tf.int32
        signature = [tf.TensorSpec((batch, 4), dtype)]
        function = tf.function(floats if batch else tf.abs, input_signature=signature)
        concrete = function.get_concrete_function()
        content = tf.lite.TFLiteConverter.from_concrete_functions([concrete]).convert()
        problems = unsuitable_tensors(content)
        assert problems
        assert all(words in problem for problem in problems)


def test_the_pages_command_makes_onnx_of_a_saved_model(
    digits_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tf2onnx", reason="an optional library")
    reference = pytest.importorskip("onnx.reference", reason="an optional library")
    code, out, err = run(capsys, "export", f"--model-dir={digits_model}", f"--output={tmp_path}")
    assert code == 0, err
    (command,) = re.findall(r"^    python (-m tf2onnx.*)$", pages.text("models"), re.M)
    arguments = command.replace("exported/STEP", out.rpartition("=")[2].strip()).split()
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True, capture_output=True)
    images = np.random.default_rng(2).integers(0, 256, (2, 28, 28, 1), np.uint8)
    expected = restore_model(str(digits_model)).predict(tf.constant(images))
    evaluator = reference.ReferenceEvaluator(str(tmp_path / "model.onnx"))
    got = dict(zip(evaluator.output_names, evaluator.run(None, {"images": images}), strict=True))
    np.testing.assert_allclose(got["probabilities"], expected["probabilities"], atol=1e-5)
    assert got["classes"].tolist() == expected["classes"].numpy().tolist()


def test_the_description_of_a_model_keeps_the_parameters_that_were_changed(
    digits_model: Path,
) -> None:
    description = read_description(str(digits_model))
    _, params = description.definition(str(digits_model))
    assert description.model == "mnist_cnn"
    assert description.spec.shape == (28, 28, 1)
    assert params.global_batch_size == 64
    assert "seed" not in description.params


def test_the_best_evaluation_s_checkpoint_can_be_exported_instead_of_the_newest(
    digits_model: Path, tmp_path: Path
) -> None:
    for source, name in (("checkpoints", "best"), ("model.json", "model.json")):
        (tmp_path / name).symlink_to(digits_model / source)
    best = restore_model(str(tmp_path), best=True)
    assert best.checkpoint.startswith(f"{tmp_path}/best/ckpt-")
    assert best.checkpoint.endswith(f"-{best.step}")


def test_a_best_checkpoint_that_no_evaluation_chose_is_refused_with_what_there_is(
    digits_model: Path, tmp_path: Path
) -> None:
    for name in ("checkpoints", "model.json"):
        (tmp_path / name).symlink_to(digits_model / name)
    newest = re.escape(tpu_training.load(str(tmp_path)).checkpoint)
    words = (
        rf"contains no best checkpoint, but the newest, {newest}; omit --best \(best=True\) .*, "
        "or train with a validation split, such as --validation_fraction="
    )
    with pytest.raises(InputError, match=words):
        tpu_training.load(str(tmp_path), best=True)


def test_invalid_options_are_refused_before_loading(
    digits_model: Path, bars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ("export", f"--output={tmp_path}/o")
    code, _, err = run(capsys, *export, f"--model-dir={tmp_path}")
    assert (code, "contains no model.json" in err) == (2, True)
    for flags, words in (
        (("--batch-size=2", "--format=tflite"), "--batch-size=2: a tflite model takes one"),
        (("--batch-size=0",), "--batch-size: 0: must be at least 1"),
        (("--test-examples=x",), "--test-examples: x: expected a whole number"),
    ):
        code, _, err = run(capsys, *export, "--model-dir=m", *flags)
        assert (code, words in err) == (2, True)
    with pytest.raises(InputError, match="--batch-size=2: a tflite model takes one image"):
        tpu_training.export("m", f"{tmp_path}/o", kind="tflite", batch_size=2)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(InputError, match=r"is broken .*its format is None"):
        read_description(str(tmp_path))
    (tmp_path / "model.json").write_text((digits_model / "model.json").read_text())
    code, _, err = run(capsys, *export, f"--model-dir={tmp_path}")
    assert (code, "contains no checkpoint" in err) == (2, True)
    assert not (tmp_path / "o").exists()


def test_a_model_description_in_a_bucket_cannot_run_local_files(tmp_path: Path) -> None:
    """A model's or a task's file is run where the user has named it, or the directory is local."""
    (tmp_path / "x.py").write_text("raise SystemExit('it runs')\n")
    spec = DataSpec("image", (28, 28, 1), "uint8", 10)
    for model, task, way in (
        (f"{tmp_path}/x.py", "", "--model"),
        ("mnist_cnn", f"{tmp_path}/x.py", "task="),
    ):
        description = ModelDescription(model, {}, spec, "", task=task)
        with pytest.raises(InputError, match=rf"gs://b/m/model.json names .*x\.py .*{way}"):
            description.definition("gs://b/m")
