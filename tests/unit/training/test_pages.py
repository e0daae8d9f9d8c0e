"""The commands in the pages are commands that the package takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tpu_training.__main__ import parse

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "training" / "docs").glob("*.md"))


def read(page: Path) -> str:
    """A page's text, in which each command is one line."""
    return page.read_text(encoding="utf-8").replace("\\\n", "")


def needs(command: str) -> tuple[pytest.MarkDecorator, ...]:
    """A model's file is loaded, with what it imports."""
    return (pytest.mark.training,) if ".py" in command else ()


COMMANDS = [
    pytest.param(command, page, id=f"{page.stem}-{number}", marks=needs(command))
    for page in PAGES
    for number, command in enumerate(re.findall(r"^    tpu-training (.*)$", read(page), re.M))
]


def test_there_are_pages_with_commands() -> None:
    assert {page.stem for page in PAGES} >= {"environments", "export", "lr-range-test"}
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize(("command", "page"), COMMANDS)
def test_a_command_of_a_page_is_understood(
    command: str, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "training").symlink_to(ROOT / "training")
    monkeypatch.chdir(tmp_path)
    if model := re.search(r"--model=(\S+\.py)", command):
        code = re.search(r"^```python\n(.*?)^```", read(page), re.M | re.S)
        assert code, "a page shows the file that it names"
        Path(model[1]).write_text(code[1])
    assert parse(shlex.split(command))
