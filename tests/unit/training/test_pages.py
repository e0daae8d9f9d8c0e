"""The commands in the pages are commands that the package takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tpu_training.commands.cli import parse

PAGES = sorted((Path(__file__).parents[3] / "training" / "docs").glob("*.md"))
COMMANDS = [
    pytest.param(command, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, command in enumerate(
        re.findall(r"^    tpu-training (.*)$", page.read_text(encoding="utf-8"), re.M)
    )
]


def test_there_are_pages_with_commands() -> None:
    assert {page.stem for page in PAGES} >= {"environments", "export", "lr-range-test", "seeing"}
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_page_is_understood(command: str) -> None:
    assert parse(shlex.split(command))
