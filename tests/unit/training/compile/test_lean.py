"""TensorFlow is imported without what it merely looks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# As TensorFlow and Keras do it: keras/src/wrappers/fixes.py, gce_cluster_resolver.py.
TENSORFLOW = """
import json
try:
    import sklearn
except ImportError:
    sklearn = None
"""
LIBRARY = "print('loaded')"
LEAN = "from tpu_training.compile.lean import import_tensorflow; import_tensorflow(); "


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


def test_what_a_models_file_has_loaded_stays_as_it_is(tmp_path: Path) -> None:
    code = f"import sklearn; {LEAN}import tensorflow as tf; print(tf.sklearn is sklearn)"
    assert run(tmp_path, code) == "loaded\nTrue\n"
