"""TensorFlow is imported without what it merely looks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpu_training import __main__ as command_line
from tpu_training.data import conversion
from tpu_training.errors import InputError
from tpu_training.job import start
from tpu_training.job.job import Job
from tpu_training.models.params import Params

# As TensorFlow and Keras do it: keras/src/wrappers/fixes.py, gce_cluster_resolver.py.
TENSORFLOW = """
import json
try:
    import sklearn
except ImportError:
    sklearn = None
"""
LIBRARY = "print('loaded')"
LEAN = "from tpu_training.compile.programs import import_tensorflow; import_tensorflow(); "


def run(tmp_path: Path, code: str) -> str:
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    (tmp_path / "sklearn.py").write_text(LIBRARY)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)


def test_a_library_that_tensorflow_can_do_without_is_not_loaded(tmp_path: Path) -> None:
    assert run(tmp_path, "import tensorflow") == "loaded\n"
    assert run(tmp_path, f"{LEAN}import tensorflow as tf; print(tf.sklearn)") == "None\n"


def test_a_model_that_imports_it_later_gets_it(tmp_path: Path) -> None:
    assert run(tmp_path, f"{LEAN}import sklearn") == "loaded\n"


def test_modules_loaded_by_a_model_file_stay_loaded(tmp_path: Path) -> None:
    code = f"import sklearn; {LEAN}import tensorflow as tf; print(tf.sklearn is sklearn)"
    assert run(tmp_path, code) == "loaded\nTrue\n"


@pytest.mark.parametrize(
    ("data", "callback", "own_process", "lean"),
    [
        ("data", "", True, True),
        ("data", "", False, False),
        ("mine.py", "", True, False),
        ("data", "mine.py", True, False),
    ],
)
def test_a_job_skips_optional_libraries_unless_user_code_runs_in_its_process(
    monkeypatch: pytest.MonkeyPatch, data: str, callback: str, own_process: bool, lean: bool
) -> None:
    spared = []

    def load_and_end(_job: object, load: Any) -> None:
        load()
        raise InputError("loaded")

    monkeypatch.setattr(start, "import_tensorflow", lambda: spared.append(True))
    monkeypatch.setattr("importlib.import_module", lambda _: None)
    monkeypatch.setattr(start, "find_workers", load_and_end)
    nothing: Any = None
    job = Job("train", nothing, nothing, nothing, data, "m", nothing, Params(callback=callback))
    with pytest.raises(InputError, match="loaded"):
        start.run_job(job, nothing, nothing, 0.0, own_process=own_process)
    assert bool(spared) == lean


@pytest.mark.parametrize(("source", "lean"), [("digits", True), ("mine.py", False)])
def test_a_conversion_skips_them_unless_it_runs_a_users_file(
    monkeypatch: pytest.MonkeyPatch, source: str, lean: bool
) -> None:
    spared = []

    def convert(_source: str, _output: str, _options: object, _storage: object, *load: Any) -> None:
        for each in load:
            each()
        raise InputError("converted")

    monkeypatch.setattr(command_line, "import_tensorflow", lambda: spared.append(True))
    monkeypatch.setattr(conversion, "convert", convert)
    command = command_line.parse(["data", "convert", f"--source={source}", "--output=out"])
    assert callable(command)
    with pytest.raises(InputError, match="converted"):
        command()
    assert bool(spared) == lean
