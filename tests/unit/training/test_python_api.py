"""`fit` from Python runs the job that the command line runs."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tpu_training
from tests.unit.training import pages
from tpu_training.errors import InputError
from tpu_training.models.params import param

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

RANDOM = np.random.default_rng(5)
IMAGES = RANDOM.integers(0, 256, (60, 4, 4, 1), dtype=np.uint8)
CLASSES = IMAGES[:, 0, 0, 0] // 128
ARRAYS = {"train": (IMAGES[:40], CLASSES[:40]), "test": (IMAGES[40:], CLASSES[40:])}
SIZES = {"global_batch_size": 20, "evaluation_batch_size": 16, "steps_per_loop": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sized(tpu_training.Params):
    """With a field that no checkpoint's record holds."""

    sizes: bytes = param(b"12", "sizes")


@pytest.fixture
def fit(one_device: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tpu_training.Result]:
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: one_device)
    return tpu_training.fit


def create_model(params: Any, spec: Any, seed: int) -> Any:
    import tensorflow as tf

    class Net(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.zeros((16, 2)))

        def __call__(self, features: tf.Tensor, training: bool) -> tf.Tensor:
            return tf.reshape(tf.cast(features, tf.float32), (-1, 16)) @ self.kernel

    return Net()


def test_the_package_loads_tensorflow_and_numpy_only_when_they_are_needed() -> None:
    script = """
import sys, tpu_training
from tpu_training import Task, Metric, Params, InputError
assert set(tpu_training.__all__) == set(dir(tpu_training))
assert not {"tensorflow", "numpy"} & set(sys.modules), "loaded"
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_exists_and_has_its_type_in_the_stub() -> None:
    stub = Path(tpu_training.__file__).with_suffix(".pyi").read_text()
    for name in dir(tpu_training):
        assert getattr(tpu_training, name) is not None
        assert re.search(rf"\b{name}\b", stub), name
    with pytest.raises(AttributeError, match="no attribute trian"):
        tpu_training.trian  # type: ignore[attr-defined]  # noqa: B018


def test_the_pages_example_has_at_most_forty_lines_and_learns(
    fit: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = pages.programs("models")["example.py"]
    assert len(code.splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "example.py"
    file.write_text(code)
    module = types.ModuleType("example")
    exec(compile(code, str(file), "exec"), module.__dict__)
    assert module.result.metrics["test_r2"] > 0.8
    assert (tmp_path / "results" / "report.json").is_file()


def test_the_page_classifies_image_files(
    fit: Callable[..., tpu_training.Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pictures = pytest.importorskip("PIL.Image")
    images = RANDOM.integers(0, 256, (4, 28, 28, 1), dtype=np.uint8)
    result = fit(
        "mnist_cnn",
        data=(images, np.arange(4) % 2),
        model_dir=str(tmp_path / "results"),
        **SIZES | {"global_batch_size": 4},
    )
    files = [str(tmp_path / f"{number}.png") for number in range(4)]
    for file, image in zip(files, images[..., 0], strict=True):
        pictures.fromarray(image).save(file)
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["classify.py", str(tmp_path / "results"), *files])
    exec(compile(pages.programs("models")["classify.py"], "classify.py", "exec"), {})
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["file"] for each in said] == files
    expected = result.predict(images)["probabilities"]
    np.testing.assert_allclose([each["probabilities"] for each in said], expected, rtol=1e-4)


def test_a_second_fit_call_resumes_and_returns_history_and_metrics(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    arrays = ARRAYS | {"validation": (IMAGES[30:40], CLASSES[30:40])}
    where = {"data": arrays, "model_dir": str(tmp_path / "m"), **SIZES}
    first = fit(create_model, **where, epochs=2)
    second = fit(create_model, **where, epochs=4)
    assert first.history[-1]["step"] == 4 < second.history[0]["step"]
    assert second.history[-1]["step"] == 8
    assert set(first.history[0]) == {"step", "loss", "learning_rate", "accuracy"}
    assert second.metrics["steps"] == 8
    assert second.metrics["test_examples"] == 20
    assert second.metrics["validation_examples"] == 10
    said = second.predict(IMAGES[40:])["classes"]
    assert np.mean(said == CLASSES[40:]) == pytest.approx(second.metrics["test_accuracy"])
    third = fit(create_model, **where, epochs=6, mode="train")
    assert "test_accuracy" not in third.metrics, "which would be that of step 8"
    last = fit(create_model, **where, epochs=6, mode="evaluate")
    assert (last.metrics["steps"], last.metrics["test_examples"]) == (12, 20)


def test_predictions_match_the_reported_model_batch_by_batch(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    import tensorflow as tf

    seen: list[int | None] = []

    def noted(params: Any, spec: Any, seed: int) -> Any:
        class Net(type(create_model(params, spec, seed))):  # type: ignore[misc]
            def __call__(self, features: tf.Tensor, training: bool) -> tf.Tensor:
                seen.append(None if tf.executing_eagerly() else features.shape[0])
                return super().__call__(features, training)

        return Net()

    # After 8 steps the average is far behind the weights.
    settings = {"epochs": 4, "ema_decay": 0.99, "learning_rate": 0.1, **SIZES}
    result = fit(noted, data=ARRAYS, model_dir=str(tmp_path / "m"), **settings)
    seen.clear()
    said = result.predict(IMAGES[40:])
    assert seen == [16], "compiled once, for batches as an evaluation has them"
    found = np.log(said["probabilities"][np.arange(20), CLASSES[40:]])
    assert -np.mean(found) == pytest.approx(result.metrics["test_loss"], rel=1e-4)
    assert np.mean(said["classes"] == CLASSES[40:]) == result.metrics["test_accuracy"]
    assert result.predict(IMAGES[:3])["classes"].shape == (3,)
    assert result.predict(IMAGES[:0])["classes"].shape == (0,)
    with pytest.raises(InputError, match=r"float64 of the shape \(60, 4, 4, 1\), expected uint8"):
        result.predict(IMAGES / 255.0)


def test_a_task_that_makes_its_input_predicts_from_raw_features(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    texts = RANDOM.integers(1, 9, (60, 6))
    arrays = {"train": (texts[:40], None), "test": (texts[40:], None)}
    sizes = SIZES | {"layers": 1, "hidden_size": 8, "epochs": 1}
    result = fit("bert", task="causal_lm", data=arrays, model_dir=str(tmp_path / "m"), **sizes)
    said = result.predict(texts[40:])["outputs"]
    right = said.argmax(axis=-1) == texts[40:, 1:]
    assert np.mean(right) == pytest.approx(result.metrics["test_accuracy"])
    loaded = tpu_training.load(result.model_dir).predict(texts[40:])
    np.testing.assert_allclose(loaded["outputs"], said, rtol=1e-4, atol=1e-5)


def test_a_place_whose_examples_have_several_inputs_and_weights_is_predicted(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "import tensorflow as tf\n"
        "def dataset(split, context):\n"
        "    rows = tf.reshape(tf.range(80.0), (40, 2)) / 80.0\n"
        "    named = {'one': rows, 'two': -rows}\n"
        "    return tf.data.Dataset.from_tensor_slices((named, tf.range(40) % 2, rows[:, 0]))\n"
    )

    def create(params: Any, spec: Any, seed: int) -> Any:
        import tensorflow as tf

        class Net(tf.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.kernel = tf.Variable(tf.ones((2, 2)))

            def __call__(self, named: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
                return named["one"] @ self.kernel - named["two"]

        return Net()

    place = str(tmp_path / "mine.py")
    result = fit(create, data=place, model_dir=str(tmp_path / "m"), **SIZES)
    loaded = tpu_training.load(result.model_dir, model=create)
    rows = np.arange(80, dtype=np.float32).reshape(40, 2) / 80
    np.testing.assert_allclose(
        tpu_training.predict(loaded, place)["probabilities"],
        result.predict({"one": rows, "two": -rows})["probabilities"],
        rtol=1e-4,
    )


def test_a_process_connects_to_a_target_once_and_again_after_its_worker_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tpu_training.cluster import cluster
    from tpu_training.cluster.endpoint import Addresses, Wait

    made = list[object]()

    def connect(addresses: Addresses) -> tuple[object, str]:
        made.append(types.SimpleNamespace(strategy_name="S", replicas=8, endpoint="e"))
        return made[-1], "it is named"

    monkeypatch.setattr(cluster, "_connect_remote", connect)
    monkeypatch.setattr(
        "tpu_training.cluster.endpoint.wait_for_workers", lambda target, wait: target
    )
    cluster.connect.cache_clear()
    one, other = Addresses(("a:1",), "--tpu"), Addresses(("b:1",), "--tpu")
    first = cluster.connect(one, Wait(), 0)
    assert cluster.connect(Addresses(("a:1",), "--tpu"), Wait(), 0) is first
    assert cluster.connect(other, Wait(), 0) is not first
    # The connection to another TPU has replaced that to the first.
    assert cluster.connect(one, Wait(), 0) is not first
    cluster.connect.cache_clear()
    cluster.connect(one, Wait(), 0)
    cluster.connect.cache_clear()
    assert len(made) == 4


def test_fit_matches_the_command_line_bit_for_bit(
    fit: Callable[..., tpu_training.Result], run_here: Callable[..., None], tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    tpu_training.write_data(data, **ARRAYS)  # type: ignore[arg-type]
    result = fit(data=data, model_dir=str(tmp_path / "a"), epochs=2, **SIZES)
    flags = [f"--{name}={value}" for name, value in SIZES.items()]
    there = tmp_path / "b"
    run_here("train-and-evaluate", f"--data={data}", f"--model-dir={there}", "--epochs=2", *flags)
    import tensorflow as tf

    weights = [variable.numpy() for variable in result.model.trainable_variables]
    checkpoint = tf.train.load_checkpoint(str(there / "checkpoints"))
    saved = [
        checkpoint.get_tensor(name)
        for name in checkpoint.get_variable_to_shape_map()
        if name.startswith("model/")
    ]
    assert len(saved) == len(weights)
    assert all(any(np.array_equal(w, s) for s in saved) for w in weights)


def test_callbacks_are_called_between_loops(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    seen: list[int] = []

    class Seen(tpu_training.Callback):
        def between_loops(self, step: int, report: tpu_training.LoopReport) -> None:
            seen.append(step)

    fit(create_model, data=ARRAYS, model_dir=str(tmp_path), epochs=2, callbacks=[Seen()], **SIZES)
    assert seen[-1] == 4


def test_a_callback_stops_the_training_with_a_checkpoint_and_a_test(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    class Stop(tpu_training.Callback):
        def before_loop(self, step: int, report: tpu_training.LoopReport) -> None:
            assert self.control.model.kernel.shape == (16, 2)
            if step == 4:
                self.control.stop()

    sizes = {**SIZES, "epochs": 20}
    result = fit(create_model, data=ARRAYS, model_dir=str(tmp_path), callbacks=[Stop()], **sizes)
    assert result.metrics["steps"] == 4
    assert result.metrics["test_examples"] == 20
    assert (tmp_path / "checkpoints" / "ckpt-4.index").is_file()


def test_a_callback_scales_the_rate_also_after_a_restart(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    class Halve(tpu_training.Callback):
        def before_loop(self, step: int, report: tpu_training.LoopReport) -> None:
            if step == 2:
                self.control.scale_rate(0.5)
            if step == 4:
                self.control.stop()

    sizes = {**SIZES, "epochs": 4, "schedule": "constant", "warmup_fraction": 0.0}
    given = {"data": ARRAYS, "model_dir": str(tmp_path), **sizes, "steps_per_loop": 1}
    first = fit(create_model, callbacks=[Halve()], **given)
    then = fit(create_model, **given)
    rate = first.history[0]["learning_rate"]
    assert [row["learning_rate"] for row in first.history] == pytest.approx(
        [rate, rate, rate / 2, rate / 2]
    )
    assert [row["step"] for row in then.history] == [5, 6, 7, 8]
    assert [row["learning_rate"] for row in then.history] == pytest.approx([rate / 2] * 4)


@pytest.mark.parametrize("relative", [True, False])
def test_a_rate_that_a_callback_changes_is_in_the_checkpoint_of_that_step(
    fit: Callable[..., tpu_training.Result], tmp_path: Path, relative: bool
) -> None:
    class Halve(tpu_training.Callback):
        def before_loop(self, step: int, report: tpu_training.LoopReport) -> None:
            if relative:
                self.control.learning_rate = report.learning_rate / 2
            else:
                self.control.scale_rate(0.5**step)

    class Crash(tpu_training.Callback):
        def between_loops(self, step: int, report: tpu_training.LoopReport) -> None:
            if step == 2:
                raise RuntimeError

    sizes = {**SIZES, "schedule": "constant", "warmup_fraction": 0.0, "checkpoint_interval": 1}
    given = {"data": ARRAYS, **sizes, "steps_per_loop": 1, "steps": 4}
    whole = fit(create_model, callbacks=[Halve()], model_dir=str(tmp_path / "whole"), **given)
    given["model_dir"] = str(tmp_path / "parts")
    with pytest.raises(InputError, match="RuntimeError"):
        fit(create_model, callbacks=[Halve(), Crash()], **given)
    resumed = fit(create_model, callbacks=[Halve()], **given)
    assert resumed.history == whole.history[2:]


def test_a_callback_that_fails_before_a_loop_loses_no_checkpoint_that_is_due(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    class Fail(tpu_training.Callback):
        def before_loop(self, step: int, report: tpu_training.LoopReport) -> None:
            if step == 2:
                self.control.scale_rate(0.5)
                raise RuntimeError

    sizes = {**SIZES, "schedule": "constant", "warmup_fraction": 0.0, "checkpoint_interval": 2}
    given = {"data": ARRAYS, "model_dir": str(tmp_path / "parts"), **sizes, "steps": 4}
    with pytest.raises(InputError, match="RuntimeError"):
        fit(create_model, callbacks=[Fail()], **given)
    resumed = fit(create_model, **given)
    given["model_dir"] = str(tmp_path / "whole")
    whole = [row["learning_rate"] for row in fit(create_model, **given).history]
    assert [row["step"] for row in resumed.history] == [4]
    assert [row["learning_rate"] for row in resumed.history] == pytest.approx([whole[1] / 2])


def test_a_stop_between_loops_ends_after_the_loop_that_runs(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    class Stop(tpu_training.Callback):
        def between_loops(self, step: int, report: tpu_training.LoopReport) -> None:
            self.control.stop()

    sizes = {**SIZES, "epochs": 20}
    result = fit(create_model, data=ARRAYS, model_dir=str(tmp_path), callbacks=[Stop()], **sizes)
    assert result.metrics["steps"] == 4
    assert (tmp_path / "checkpoints" / "ckpt-4.index").is_file()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epoch": 3}, "--epoch: unknown; did you mean --epochs?"),
        ({"mode": "fit"}, "mode='fit': expected one of train, evaluate"),
        ({"model": 3}, "model=3: expected a model's name, the path of a .py file, or a function"),
        ({"data": {"test": ARRAYS["train"]}}, "data has 'test'; expected 'train', and optionally"),
        ({"task": "regression"}, "needs examples with numbers, but the dataset has class"),
        ({"params": tpu_training.Params(), "epochs": -1}, "--epochs=-1: must be at least 0.001"),
        ({"params": tpu_training.Params(seed=-1)}, "--seed=-1: must be at least 0"),
        ({"params": tpu_training.Params(), "part_batch_size": 3}, "--part_batch_size: unknown"),
        ({"params": Sized()}, "--sizes=b'12': expected bool, int, float or str as its type"),
        ({"params": "epochs"}, "params='epochs': expected a mapping or the model's own class"),
        ({"task": 3}, "--task=3: unknown; see --help for all names; expected classification"),
        ({"callbacks": [print]}, "callbacks=[<built-in function print>], expected a list of tpu_"),
        ({"callbacks": tpu_training.Callback()}, "expected a list of tpu_training.loop.callbacks"),
        ({"model_dir": Path("m")}, "model_dir=PosixPath('m'): expected a str, a path or gs://"),
        (
            {"data": {"train": (IMAGES[:40], CLASSES[:39]), "test": ARRAYS["test"]}},
            "data['train']: expected the same number of examples in each, but features has 40",
        ),
        (
            {"data": {"train": ARRAYS["train"], "test": (IMAGES[40:], CLASSES[40:] * 1.0)}},
            "with 1 numbers, split train features uint8 of the shape (4, 4, 1) with class",
        ),
    ],
)
def test_problems_are_reported_before_the_job_begins(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    given: dict[str, Any] = {
        "model": create_model,
        "data": ARRAYS,
        "model_dir": str(tmp_path / "m"),
        **SIZES,
    }
    with pytest.raises(InputError) as caught:
        tpu_training.fit(**(given | changed))
    assert words in str(caught.value)
    assert not (tmp_path / "m" / "tensorboard").exists()


def test_problems_of_several_arguments_are_reported_at_once(tmp_path: Path) -> None:
    no_callbacks: Any = [print]
    with pytest.raises(InputError) as caught:
        tpu_training.fit(
            "mnist",
            data={"test": ARRAYS["train"]},
            model_dir=str(tmp_path / "m"),
            mode="fit",
            callbacks=no_callbacks,
        )
    for words in ("mode='fit'", "--model=mnist: unknown", "data has 'test'", "callbacks=[<built-"):
        assert words in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.py", "nowhere.parquet"])
def test_missing_places_are_reported_with_the_problems_of_other_arguments(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as caught:
        tpu_training.fit(
            "mnist_cnn", data=f"{tmp_path}/{name}", model_dir=f"{tmp_path}/file/m", epochs="many"
        )
    for words in ("--epochs=many", f"--data={tmp_path}/{name}: ", f"{tmp_path}/file is a file"):
        assert words in str(caught.value)


def test_a_notebook_model_of_wrong_shapes_is_reported_with_its_line(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    def wrong(params: Any, spec: Any, seed: int) -> Any:
        model = create_model(params, spec, seed)
        model.kernel = model.kernel[:, :1]
        return model

    with pytest.raises(InputError, match=r"test_python_api\.py:\d+: "):
        fit(wrong, data=ARRAYS, model_dir=str(tmp_path), **SIZES)


def test_a_notebook_shows_one_bar_that_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpu_training.loop.callbacks import LoopReport
    from tpu_training.monitoring.terminal import Progress

    inside = types.ModuleType("IPython")
    inside.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", inside)
    cell = io.StringIO()
    progress = Progress(10, cell)
    for step in (10, 20):
        progress.between_loops(step, LoopReport(step, 100, 10, 0.5, {}, 0.1, 2.0, 0.0))
    progress.close()
    drawn = re.split(r"\r *\r", cell.getvalue())
    assert [re.findall(r"(\d+)% (\d+)/", line) for line in drawn] == [
        [],
        [("10", "10")],
        [("20", "20")],
    ]


@pytest.fixture(autouse=True)
def _the_log_as_it_was() -> Iterator[None]:
    logger = logging.getLogger("tpu_training")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers, logger.level = handlers, level


def test_a_model_of_another_task_is_exported_and_predicts_its_numbers(
    fit: Callable[..., tpu_training.Result], run_here: Callable[..., None], tmp_path: Path
) -> None:
    numbers = IMAGES.mean(axis=(1, 2)) / 128
    arrays = {"train": (IMAGES[:40], numbers[:40]), "test": (IMAGES[40:], numbers[40:])}
    result = fit("mnist_cnn", data=arrays, model_dir=str(tmp_path / "m"), epochs=1, **SIZES)
    (data,) = (tmp_path / "m").glob("data-*")
    run_here("export", f"--model-dir={tmp_path}/m", f"--output={tmp_path}/out")
    said = tpu_training.predict(str(tmp_path / "m"), str(data))["outputs"]
    loss = np.mean((said - numbers[40:]) ** 2)
    assert loss == pytest.approx(result.metrics["test_loss"], rel=1e-4)
    figures = tpu_training.evaluate(str(tmp_path / "m"), str(data))
    assert figures["loss"] == pytest.approx(loss, rel=1e-4)
    with pytest.raises(InputError, match="one class for each example"):
        run_here("export", f"--model-dir={tmp_path}/m", "--format=tflite", f"--output={tmp_path}")


def test_a_model_and_task_of_a_notebook_are_exported_with_what_fit_was_given(
    fit: Callable[..., tpu_training.Result], run_here: Callable[..., None], tmp_path: Path
) -> None:
    import tensorflow as tf

    from tpu_training.tasks.built_in import TASKS

    task = dataclasses.replace(TASKS["classification"], name="mine", own=True)
    where: dict[str, Any] = {"model_dir": str(tmp_path / "m"), "task": task}
    result = fit(create_model, data=ARRAYS, epochs=1, **where, **SIZES)
    output = str(tmp_path / "out")
    for given in (None, task):
        with pytest.raises(InputError, match=r"function create_model of a notebook.*export\("):
            tpu_training.export(str(tmp_path / "m"), output, task=given)
    with pytest.raises(InputError, match="trained for the task mine, which is in no file"):
        tpu_training.export(str(tmp_path / "m"), output, model=create_model)
    with pytest.raises(InputError, match=r"the function create_model of a notebook"):
        run_here("export", f"--model-dir={tmp_path}/m", f"--output={tmp_path}/out")
    assert not (tmp_path / "out").exists()
    line = tpu_training.export(**where, output=output, model=create_model)
    exported = tf.saved_model.load(line.removeprefix("saved_model="))
    found = exported.signatures["serving_default"](images=tf.constant(IMAGES[40:]))
    expected = result.predict(IMAGES[40:])
    np.testing.assert_array_equal(found["classes"], expected["classes"])
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], rtol=1e-5)
