"""Without TensorFlow every command that needs it says which extra to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# As if it were not installed: nothing finds it.
WITHOUT_TENSORFLOW = """
import sys
from importlib.machinery import PathFinder

class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
from tpu_training.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
MESSAGE = (
    "training failed: TensorFlow is not installed in this Python: pip install "
    "'tpu-stack-training[cpu]' (with NVIDIA GPUs 'tpu-stack-training[gpu]', on a TPU VM "
    "'tpu-stack-training[tpu]'), or use the Python that has it; see "
    "https://www.tensorflow.org/install/pip [No module named 'tensorflow']\n"
)
JOB = ("--data=d", "--model-dir=m")


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", *JOB),
        ("evaluate", "--tpu=a-tpu-that-nobody-looks-up", *JOB),
        ("lr-range-test", "--no-plot", *JOB),
        ("data", "inspect", "--data=d"),
        ("export", "--model-dir=m", "--output=o"),
        ("predict", "--saved-model=s", "--input=d", "--output=p.csv"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_without_tensorflow_a_command_names_the_extras_to_install(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", MESSAGE)


@pytest.mark.parametrize("arguments", [("--help",), ("train", "--help"), ("--version",)])
def test_help_and_version_need_no_tensorflow(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
