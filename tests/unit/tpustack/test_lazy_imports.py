"""Deploying takes neither TensorFlow nor numpy nor Google's large client library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_turn import Commands, run_in_turn

REPOSITORY = Path(__file__).parents[3]
BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "keras", "numpy", "googleapiclient"}:
            raise AssertionError(f"imports {name}")

sys.meta_path.insert(0, Refuse())
"""
# `load` imports all that these can ever load: they take an engine and a cloud to be run whole.
RUN = """
import importlib, pkgutil

def load(name):
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}."):
        # A __main__ declares resources as soon as it is imported.
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)

def run(arguments):
    if arguments[0] == "load":
        for name in arguments[1:]:
            load(name)
        return
    from tpustack.__main__ import main
    sys.argv = ["tpustack", *arguments]
    main()
"""
COMMANDS = [
    ["check", "--json"],
    ["cost", "--accelerator-type", "v3-8", "--region", "us-central1"],
    ["doctor", "-"],
    ["ci", "--help"],
    ["follow", "--help"],
]
MODULES = {
    "preview": ["load", "tpu_infra", "tpu_policy", "tpu_bootstrap"],
    "ci": ["load", "tpustack.ci", "tpustack.engine", "tpustack.recovery"],
    "commands": ["load", "tpustack.commands", "tpustack.logs", "tpustack.cloud"],
}
FORBIDDEN = ["load", "numpy"]


@pytest.fixture(scope="module")
def done() -> Commands:
    """All of it in one process: an import that is refused is tried again by the next one."""
    return run_in_turn(BLOCKED + RUN, [FORBIDDEN, *COMMANDS, *MODULES.values()], REPOSITORY)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_runs_without_tensorflow_numpy_and_googles_client(
    arguments: list[str], done: Commands
) -> None:
    ended = done[tuple(arguments)]
    assert "imports" not in ended.stderr
    # A check ends with 2 where the wheel and the data are not built yet.
    assert ended.returncode in ((0, 2) if arguments[0] == "check" else (0,)), ended.stderr
    assert ended.stdout


@pytest.mark.parametrize("modules", MODULES.values(), ids=MODULES)
def test_modules_load_without_tensorflow_numpy_and_googles_client(
    modules: list[str], done: Commands
) -> None:
    ended = done[tuple(modules)]
    assert ended.returncode == 0, ended.stderr


def test_a_forbidden_import_is_seen(done: Commands) -> None:
    assert "imports numpy" in done[tuple(FORBIDDEN)].stderr


def test_commands_about_jobs_load_no_engine_no_settings_and_no_tables() -> None:
    """Two thirds of what `job list` takes, otherwise."""
    loads = (
        "import sys, tpustack.jobs.command, tpustack.jobs.command; "
        "sys.exit(' '.join({'pulumi', 'pydantic', 'rich', 'yaml'} & {*sys.modules}) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", loads], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
