"""The gallery shows what examples/ has: each program, its own words, a command that runs it."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from .conftest import REPOSITORY, code_blocks, headings, text

PAGE = "examples/README.md"
EXAMPLES = REPOSITORY / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*/*.py"))
# What brings a framework of its own; without any, it is the runtime's TensorFlow.
LIBRARIES = {"torch": "pytorch", "jax": "jax", "keras": "jax"}


def command(program: Path) -> list[str]:
    """The words that submit a program as a job."""
    folder = program.parent.relative_to(REPOSITORY).as_posix()
    words = ["tpustack", "job", "submit", "--dir", folder, "--command", f"python {program.name}"]
    lock = program.parent / "requirements.txt"
    locked = set(re.findall(r"^([a-z-]+)==", lock.read_text(), re.M)) if lock.exists() else set()
    if locked:
        words += ["--requirements", f"{folder}/requirements.txt"]
    frameworks = [framework for library, framework in LIBRARIES.items() if library in locked]
    return [*words, "--framework", next(iter(frameworks), "tensorflow")]


def test_every_folder_of_examples_is_in_the_gallery_once() -> None:
    titles = [re.split(r"[/ ]", title.lower())[0] for level, title in headings(PAGE) if level == 2]
    assert sorted(titles) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_program_is_shown_by_its_first_line_and_the_command_that_submits_it(
    program: Path,
) -> None:
    about = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
    link = program.relative_to(EXAMPLES).as_posix()
    assert f"[{program.name}]({link}):\n{about}\n" in text(PAGE)
    assert command(program) in [
        shlex.split(block.replace("\\\n", "")) for block in code_blocks(PAGE)
    ]


def test_each_example_says_what_was_tried() -> None:
    parts = re.split(r"^(?=\[\w+\.\w+\]\(\w+/)", text(PAGE), flags=re.M)[1:]
    assert len(parts) == len(PROGRAMS) + 1
    assert all("\nTried: " in part for part in parts)
