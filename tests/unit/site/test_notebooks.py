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
