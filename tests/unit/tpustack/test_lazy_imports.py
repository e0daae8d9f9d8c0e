"""Deploying takes neither TensorFlow nor numpy nor Google's large client library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "keras", "numpy", "googleapiclient"}:
            raise AssertionError(f"imports {name}")

sys.meta_path.insert(0, Refuse())
"""
RUN = """
from tpustack.__main__ import main
sys.argv = ["tpustack", *sys.argv[1:]]
main()
"""
# All that these can ever load: they take an engine and a cloud to be run whole.
LOAD = """
import importlib, pkgutil
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}."):
        # A __main__ declares resources as soon as it is imported.
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *arguments],
        cwd=REPOSITORY,
        input="fine\n",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--json"],
        ["cost", "--accelerator-type", "v3-8", "--region", "us-central1"],
        ["doctor", "-"],
        ["ci", "--help"],
        ["follow", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_runs_without_tensorflow_numpy_and_googles_client(arguments: list[str]) -> None:
    done = python(RUN, *arguments)
    assert "imports" not in done.stderr
    # A check ends with 2 where the wheel and the data are not built yet.
    assert done.returncode in ((0, 2) if arguments[0] == "check" else (0,)), done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    "modules",
    [
        ("infra", "policy", "bootstrap"),
        ("tpustack.ci", "tpustack.engine", "tpustack.recovery"),
        ("tpustack.commands", "tpustack.logs", "tpustack.cloud"),
    ],
    ids=["preview", "ci", "commands"],
)
def test_modules_load_without_tensorflow_numpy_and_googles_client(modules: tuple[str, ...]) -> None:
    done = python(LOAD, *modules)
    assert done.returncode == 0, done.stderr


def test_a_forbidden_import_is_seen() -> None:
    assert "imports numpy" in python("import numpy").stderr
