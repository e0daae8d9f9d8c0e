"""Notebooks lie in git as someone would write them, not as they were run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "examples").rglob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_holds_no_output_and_no_trace_of_a_run(path: Path) -> None:
    for cell in cells(path):
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_says_what_each_of_its_steps_does(path: Path) -> None:
    kinds = [cell["cell_type"] for cell in cells(path)]
    assert kinds[0] == "markdown"
    assert "code code" not in " ".join(kinds)


def test_kaggle_runs_the_same_notebook_on_a_tpu_in_its_own_image() -> None:
    folder = REPOSITORY / "examples" / "notebook"
    told = json.loads((folder / "kernel-metadata.json").read_text(encoding="utf-8"))
    assert (told["machine_shape"], told["enable_tpu"]) == ("TpuV5E8", "true")
    # "A kernel slug is always the title lowercased with dashes replacing spaces" (Kaggle's page).
    assert told["id"].partition("/")[2] == told["title"].lower().replace(" ", "-")
    # An image that is pinned, here or in the notebook, takes the place of the TPU's
    # (Kaggle/kaggle-cli#1197).
    notebook = json.loads((folder / told["code_file"]).read_text(encoding="utf-8"))
    assert "docker_image" not in told
    assert "kaggle" not in notebook["metadata"]
