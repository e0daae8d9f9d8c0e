from __future__ import annotations

import zipfile
from pathlib import Path

from tests.wheels import ROOT, build


def test_two_builds_give_the_same_bytes_with_all_modules_and_nothing_else(tmp_path: Path) -> None:
    first = build("training", tmp_path / "first")
    second = build("training", tmp_path / "second")
    assert first.name == "tpu_stack_training-0.1.0-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = (ROOT / "training" / "tpu_training").rglob("*.py")
    modules = {str(path.relative_to(ROOT / "training")) for path in sources}
    data = {"__init__.pyi", "compile/tpus.json", "errors/known_errors.json", "py.typed"}
    assert names == modules | {f"tpu_training/{name}" for name in data}
