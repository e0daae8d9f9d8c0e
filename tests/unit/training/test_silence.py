"""Lines that TensorFlow's C++ prints do not reach a user's terminal, unless asked for."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_training.monitoring.terminal import native_output_hidden


def noise() -> None:
    os.write(2, b"W0000 00:00:1.5 25370 helpers.cc:365] Ignored output_format.\n")
    # Buffered as C++ does, so that it would come out later.
    ctypes.CDLL(None).printf(b"Tip: increase number of attempts with --num_tracing_attempts.\n")


@pytest.mark.parametrize(("level", "shown"), [("2", False), ("0", True)])
def test_the_lines_of_a_library_are_hidden_unless_its_log_is_wanted(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, level: str, shown: bool
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    print("before")
    with native_output_hidden():
        noise()
    print("after", flush=True)
    out, err = capfd.readouterr()
    assert out.split("\n")[0] == "before"
    assert "after" in out
    assert ("Ignored" in err, "Tip:" in out) == (shown, shown)


def test_output_comes_back_after_an_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    with pytest.raises(KeyError), native_output_hidden():
        raise KeyError
    noise()
    assert "Ignored" in capfd.readouterr().err


@pytest.mark.training
def test_a_model_file_that_imports_tensorflow_prints_nothing_while_it_is_loaded(
    tmp_path: Path,
) -> None:
    model = tmp_path / "own.py"
    model.write_text("import tensorflow as tf\n")
    command = [sys.executable, "-m", "tpu_training", "train", f"--model={model}", "--data=d"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_CPP")}
    done = subprocess.run(
        [*command, "--model-dir=m"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    said = done.stderr.splitlines()
    # From 2.20 TensorFlow prints of oneDNN before its log begins, whatever its level.
    said = [line for line in said if not re.match(r"WARNING: All log mess|I0000 .*DNN", line)]
    (line,) = said
    assert line.startswith("training failed: ")


# Fails before TensorFlow is loaded, after the log is set up; then a library sets up the root's.
PROGRAM = """
import logging, os, warnings
from tpu_training import InputError, fit
try:
    fit(data="d", model_dir="m", mode="none")
except InputError:
    pass
logging.basicConfig()
logging.getLogger("tpu_training.job.run").info("report: here")
warnings.warn_explicit("old Python", FutureWarning, "there.py", 1, module="google.api_core")
print(os.environ["TF_CPP_MIN_LOG_LEVEL"], logging.getLogger("tensorflow").level, flush=True)
"""


def test_fit_prints_each_line_once_and_no_library_output() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_CPP")}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("report: here\n2 40\n", "")
