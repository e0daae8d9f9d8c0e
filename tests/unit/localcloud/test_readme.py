"""The README names folders, files and commands that are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from localcloud import cli
from localcloud.cli import main

ROOT = Path(__file__).parents[3] / "localcloud"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "localcloud"


def rows() -> list[tuple[str, str]]:
    """The folders of the map, each with one that it names below it."""
    found = []
    for line in re.findall(r"^\| `.*", README.partition("## Map")[2], re.M):
        folders, _, rest = line.lstrip("| ").partition("|")
        names = re.findall(r"`([\w/.]+)`", rest)
        for folder in re.findall(r"`(\w+/)`", folders):
            found += [(folder, name) for name in names or ["."]]
    return found


@pytest.mark.parametrize(("folder", "name"), rows())
def test_the_map_leads_to_files_that_are_there(folder: str, name: str) -> None:
    assert (PACKAGE / folder / name).exists() or (PACKAGE / name).exists()


def test_the_map_names_every_package() -> None:
    packages = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= {folder for folder, _ in rows()}


def test_every_variable_of_env_is_listed() -> None:
    listed = set(re.findall(r"`([A-Za-z0-9_]+)`", README.partition("### Variables")[2]))
    assert {*cli._pointing(0, "", "", ""), *cli._trusting("")} <= listed


def test_resumable_upload_is_in_the_map() -> None:
    assert "resumable upload: `storage/uploads.py`" in README


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^    localcloud (.+)$", README, re.M))))
def test_a_command_of_the_readme_is_one(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line, comments=True)
    assert main([*words, "--help"]) == 0
    assert "Usage: localcloud" in capsys.readouterr().out
