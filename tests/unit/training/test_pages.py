"""The commands in the pages are commands that the package takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.unit.training import pages
from tpu_training.__main__ import parse


def needs(command: str) -> tuple[pytest.MarkDecorator, ...]:
    """A model's file is loaded, with what it imports."""
    return (pytest.mark.training,) if ".py" in command else ()


COMMANDS = [
    pytest.param(command, name, id=f"{name}-{number}", marks=needs(command))
    for name in pages.NAMES
    for number, command in enumerate(re.findall(r"^    tpu-training (.*)$", pages.text(name), re.M))
]


def test_there_are_pages_with_commands() -> None:
    assert {parameters.values[1] for parameters in COMMANDS} == set(pages.NAMES)
    assert len(COMMANDS) >= 30


@pytest.mark.parametrize(("command", "name"), COMMANDS)
def test_a_command_of_a_page_is_understood(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "training").symlink_to(pages.ROOT / "training")
    monkeypatch.chdir(tmp_path)
    for file, code in pages.programs(name).items():
        Path(file).write_text(code)
    assert parse(shlex.split(command))
