from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]


def build(folder: Path) -> Path:
    """Build from a copy, as `pip wheel` leaves files beside the sources."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT / "training", folder / "training", ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(folder / "training")]
    environment = {"SOURCE_DATE_EPOCH": "315532800", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("tpu_stack_training-0.1.0-*.whl"))


def test_two_builds_give_the_same_bytes_with_all_modules_and_nothing_else(tmp_path: Path) -> None:
    first = build(tmp_path / "first")
    second = build(tmp_path / "second")
    assert first.name == "tpu_stack_training-0.1.0-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = (ROOT / "training" / "tpu_training").rglob("*.py")
    modules = {str(path.relative_to(ROOT / "training")) for path in sources}
    data = {"errors/known_errors.json", "py.typed"}
    assert names == modules | {f"tpu_training/{name}" for name in data}
