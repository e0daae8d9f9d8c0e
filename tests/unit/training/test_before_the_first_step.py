"""What a job says before its first step: cheap checks first, then what it is going to do."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpu_training.errors import CheckpointError

pytestmark = pytest.mark.training

# Loading TensorFlow is an error here.
WITHOUT_LOADING = """
import sys
class Loud:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            sys.exit("TensorFlow is loaded")
sys.meta_path.insert(0, Loud())
import importlib.util
importlib.util.find_spec = lambda name: name
from tpu_training.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def fails(*arguments: str) -> str:
    """Run a command that must end with exit code 2 before TensorFlow is loaded."""
    command = [sys.executable, "-c", WITHOUT_LOADING, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr


def test_data_and_directories_are_checked_before_tensorflow_is_loaded(
    digits: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    both = fails("train", f"--data={tmp_path}", f"--model-dir={tmp_path}/file/m")
    assert f"--data={tmp_path}: contains no manifest.json; convert the data with" in both
    assert f"--model-dir={tmp_path}/file/m: {tmp_path}/file is a file; choose another" in both
    (tmp_path / "manifest.json").write_text("{")
    long = f"--model-dir={tmp_path}/{'x' * 300}"
    both = fails("train", f"--data={tmp_path}", long, "--profile_steps=5")
    assert f"{long}: can't be looked at ([Errno 36]" in both
    assert "--profile_steps=5: expected FIRST:LAST" in both
    (tmp_path / "manifest.json").write_bytes(b"\xff")
    # The environments of `make oldest` and `make newest` have nothing to draw with.
    said = fails("lr-range-test", f"--data={tmp_path}", f"--model-dir={tmp_path}", "--no-plot")
    assert "manifest.json is not a dataset's manifest" in said
    manifest = json.loads((digits / "manifest.json").read_text())
    del manifest["splits"]["test"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    said = fails("evaluate", f"--data={tmp_path}", f"--model-dir={tmp_path}")
    assert "the dataset digits has no split test, only train" in said
    manifest["spec"]["shape"] = [0, 0, 3]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    said = fails("train", f"--data={tmp_path}", f"--model-dir={tmp_path}")
    assert "--image_size=0: the images of the dataset digits have different sizes" in said


def test_a_model_of_other_examples_is_refused_with_what_differs(
    digits: Path, digits_model: Path, tmp_path: Path, run_here: Callable[..., None]
) -> None:
    shutil.copytree(digits, tmp_path / "data")
    manifest = json.loads((digits / "manifest.json").read_text())
    manifest["spec"] |= {"shape": [14, 28, 2], "classes": 3}
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError) as caught:
        run_here("evaluate", f"--data={tmp_path}/data", f"--model-dir={digits_model}")
    assert str(caught.value) == (
        f"--data={tmp_path}/data does not fit the model in --model-dir={digits_model}, which was "
        f"trained on {digits}: images of the shape (28, 28, 1), here (14, 28, 2), 10 classes, here "
        "3; use the dataset that it was trained on, or another --model-dir"
    )
    with pytest.raises(CheckpointError, match=r"here \(14, 14, 1\) \(--image_size\); use"):
        run_here("evaluate", f"--data={digits}", f"--model-dir={digits_model}", "--image_size=14")


def test_a_model_of_another_task_is_refused_with_both_tasks(
    digits: Path, digits_model: Path, tmp_path: Path, run_here: Callable[..., None]
) -> None:
    """Whose outputs have the same shape."""
    (tmp_path / "mine.py").write_text(
        "import tensorflow as tf\nfrom tpu_training import Task\n"
        "task = Task('ranking', lambda o, t, p: tf.reduce_sum(o, -1), any_targets=True)\n"
    )
    with pytest.raises(CheckpointError) as caught:
        run_here(
            *("train", f"--data={digits}", f"--model-dir={digits_model}"),
            f"--task={tmp_path}/mine.py",
        )
    assert str(caught.value) == (
        f"--task=ranking: the model in --model-dir={digits_model} was trained for the task "
        f"classification; use that one, or another --model-dir (--init_from={digits_model} starts "
        "from its weights)"
    )


@pytest.mark.parametrize(
    ("examples", "arguments", "words"),
    [
        (
            240,
            {},
            "2 steps may be too few to learn from; raise --epochs (to 213 for 200 steps) or lower "
            "--global_batch_size (to 2)",
        ),
        (
            600000,
            {"epochs": 0.001},
            "2 steps may be too few to learn from; raise --epochs (to 0.0853 for 200 steps) or "
            "lower --global_batch_size (to 2)",
        ),
        (240, {"epochs": 100}, ""),
        (60000, {}, ""),
    ],
)  # fmt: skip
def test_a_training_of_few_steps_says_so_and_what_gives_more(
    examples: int, arguments: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    from tpu_training.data.data_set import DataSet
    from tpu_training.data.manifest import RAW, Manifest, Split, stored_spec
    from tpu_training.job.run import log_plan
    from tpu_training.models.params import Params

    spec = stored_spec(RAW, (28, 28, 1), 10)
    data = DataSet("d", Manifest("d", spec, RAW, {"train": Split(examples, ())}))
    with caplog.at_level(logging.INFO, "tpu_training"):
        log_plan(Params(**arguments), data, 0)
    plan, *warnings = caplog.messages
    assert plan.startswith(f"plan: {arguments.get('epochs', 3)} epochs of {examples} examples in")
    assert [line.removeprefix("plan: ") for line in warnings] == ([words] if words else [])
