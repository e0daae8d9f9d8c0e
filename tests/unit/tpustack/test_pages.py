"""The examples in the pages are what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Run

PAGES = [REPOSITORY / "docs" / name for name in ("catalog.md", "cost.md")]
EXAMPLE = re.compile(r"```console\n\$ tpustack (.*)\n((?:.*\n)*?)```")
CASES = [
    pytest.param(command, output, id=f"{path.stem}: {command}")
    for path in PAGES
    for command, output in EXAMPLE.findall(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("command", "output"), CASES)
def test_an_example_prints_what_the_page_says(
    command: str, output: str, project: Path, run: Run
) -> None:
    done = run(*shlex.split(command))
    assert done.code == 0, done.err
    shown, cut, _ = output.partition("...\n")
    assert done.out.startswith(shown) if cut else done.out == shown


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_page_has_an_example(path: Path) -> None:
    assert EXAMPLE.findall(path.read_text(encoding="utf-8"))
