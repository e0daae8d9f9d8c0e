"""What docs/own-model.md names of the trainer exists, and its two loops stay short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.training import pages

PAGE = pages.section("own-model", "Change the trainer")
PACKAGE = pages.ROOT / "training" / "tpu_training"
PLACES = sorted(set(re.findall(r"`([\w/]+\.py)`:\s`(\w+)`", PAGE)))
MOST_LINES = 80


def functions(file: Path) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_every_function_that_the_page_names_is_in_its_file(file: str, name: str) -> None:
    assert name in functions(PACKAGE / file)


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE)) - {"training/tpu_training/"}
    assert len(named) > 12
    theirs = {"examples/imagenet/train.py", "imagenet/train.py", "configs/default.py"}
    assert [name for name in sorted(named - theirs) if not (PACKAGE / name).exists()] == []


@pytest.mark.parametrize(
    ("file", "name"),
    [("loop/train.py", "train"), ("loop/train.py", "create_train_loop")],
)
def test_the_loops_have_at_most_eighty_lines(file: str, name: str) -> None:
    node = functions(PACKAGE / file)[name]
    assert node.end_lineno is not None
    assert node.end_lineno - node.lineno + 1 <= MOST_LINES
