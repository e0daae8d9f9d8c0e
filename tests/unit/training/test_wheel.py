from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.wheels import ROOT, build
from tpustack.project import build_wheel


@pytest.mark.slow
def test_two_builds_give_the_same_bytes_with_all_modules_and_nothing_else(tmp_path: Path) -> None:
    first = build("training", tmp_path / "first")
    second = build("training", tmp_path / "second")
    assert first.name == "tpu_stack_training-0.1.0-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {
        str(path.relative_to(ROOT / room))
        for room, package in (("training", "tpu_training"), ("core", "tpu_core"))
        for path in (ROOT / room / package).rglob("*.py")
    }
    data = {"__init__.pyi", "compile/tpus.json", "errors/known_errors.json", "py.typed"}
    assert names == modules | {f"tpu_training/{name}" for name in data} | {"tpu_core/py.typed"}


@pytest.mark.slow
def test_the_wheel_runs_where_nothing_else_is_installed(tmp_path: Path) -> None:
    """As on a machine: installed with --no-deps, outside the checkout."""
    wheel, target = build_wheel(tmp_path), tmp_path / "packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import tpu_core.lease, tpu_training.cluster.google, tpu_training.job.supervision\n"
        "print(tpu_core.__file__, tpu_training.__file__)"
    )
    # -I and -S: neither this folder nor the packages of this environment.
    command = [sys.executable, "-I", "-S", "-c", code, str(target)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(target)) for path in done.stdout.split())
