"""Without TensorFlow every command that needs it says which extra to install."""

from __future__ import annotations

import pytest

from tests.in_turn import Commands, run_in_turn

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
from tpu_training.__main__ import main as run
"""
MESSAGE = (
    "training failed: this Python has no TensorFlow: run pip install "
    "'tpu-stack-training[cpu]' (with NVIDIA GPUs 'tpu-stack-training[gpu]', on a TPU VM "
    "'tpu-stack-training[tpu]'), or use the Python that has it; see "
    "https://www.tensorflow.org/install/pip [No module named 'tensorflow']\n"
)
JOB = ("--data=d", "--model-dir=m")


NEEDING = [
    ["train", *JOB],
    ["evaluate", "--tpu=a-tpu-that-nobody-looks-up", *JOB],
    ["lr-range-test", "--no-plot", *JOB],
    ["data", "inspect", "--data=d"],
    ["export", "--model-dir=m", "--output=o"],
]
NOT_NEEDING = [["--help"], ["train", "--help"], ["--version"]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    folder = tmp_path_factory.mktemp("without")
    return run_in_turn(WITHOUT_TENSORFLOW, [*NEEDING, *NOT_NEEDING], folder)


@pytest.mark.parametrize("arguments", NEEDING, ids=lambda arguments: arguments[0])
def test_without_tensorflow_a_command_names_the_extras_to_install(
    arguments: list[str], done: Commands
) -> None:
    ended = done[tuple(arguments)]
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", MESSAGE)


@pytest.mark.parametrize("arguments", NOT_NEEDING)
def test_help_and_version_need_no_tensorflow(arguments: list[str], done: Commands) -> None:
    ended = done[tuple(arguments)]
    assert (ended.returncode, ended.stderr) == (0, "")
