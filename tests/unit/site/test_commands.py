"""The commands on the pages are commands that exist, with the options that they have.

The commands in blocks of training/docs and training/recipes have tests of their own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from localcloud.cli import main as localcloud
from tpu_training.commands.cli import parse
from tpu_training.errors import InputError
from tpustack.__main__ import cli

from .conftest import PAGES, REPOSITORY, code_blocks, prose

PROGRAM = re.compile(
    r"(?:^|\$\(|&& |\|\| |\| |; )(?:\$ )?(?:\.venv/bin/)?"
    r"(tpustack|tpu-training|python -m localcloud|make)(?: ([^|>&;#)\n]*))?(?![\w./-])",
    re.M,
)
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
VARIABLES = set(re.findall(r"^([A-Z]+) \?=", MAKEFILE, re.M))
TRAINING = {"train", "evaluate", "train-and-evaluate", "lr-range-test"}
TESTED_ELSEWHERE = ("training/docs/", "training/recipes/")


def in_blocks(page: str) -> Iterator[tuple[str, str]]:
    """Each program that a block of `page` runs, with its arguments."""
    for block in code_blocks(page):
        for program, arguments in PROGRAM.findall(block.replace("\\\n", " ")):
            if program != "tpu-training" or not page.startswith(TESTED_ELSEWHERE):
                yield program, arguments


def in_prose(page: str) -> Iterator[tuple[str, str]]:
    """Each program that `page` names between backticks, with what it says of its arguments."""
    for code in re.findall(r"`([^`]+)`", prose(page)):
        yield from PROGRAM.findall(code.replace("\n", " "))


def refusals(commands: Iterator[tuple[str, str]], *, whole: bool) -> dict[str, str]:
    """Map each command that its program would not take to the reason."""
    return {
        f"{program} {arguments}": why
        for program, arguments in commands
        if (why := refusal(program, arguments, whole=whole))
    }


def refusal(program: str, arguments: str, *, whole: bool) -> str | None:
    """Say why the program would not take the arguments; unless `whole`, some may be missing."""
    words = shlex.split(arguments if whole else re.sub(r"\S*….*", "", arguments))
    try:
        if program == "make":
            check_make(words)
        elif program == "tpustack":
            check_tpustack(words, whole=whole)
        elif program == "tpu-training":
            check_training(words, whole=whole)
        else:
            check_localcloud(words)
    except (click.UsageError, InputError, ValueError) as error:
        message = error.message if isinstance(error, click.UsageError) else str(error)
        named_file_is_missing = "there is no such file" in message or "does not exist" in message
        incomplete = not whole and "required" in message
        return None if incomplete or named_file_is_missing else message
    except SystemExit as end:
        return None if end.code == 0 else "argparse refuses it"
    return None


def check_make(words: list[str]) -> None:
    for word in words:
        name, is_variable, _ = word.partition("=")
        if name not in (VARIABLES if is_variable else TARGETS):
            raise ValueError(f"the Makefile has no {name}")


def check_tpustack(words: list[str], *, whole: bool) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            raise click.UsageError(f"no command {words[0]}")
        command, words = found, words[1:]
    if command.name == "local":
        check_localcloud(words)
    elif whole:
        command.make_context(command.name, words)
    else:
        command.make_parser(click.Context(command)).parse_args(words)


def check_training(words: list[str], *, whole: bool) -> None:
    complete = whole or not set(words[:1]) & TRAINING or any("--data" in word for word in words)
    parse(words if complete else [*words, "--data=data", "--model-dir=results"])


def check_localcloud(words: list[str]) -> None:
    if words:
        localcloud._parser().parse_args(words)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_block_of_a_page_is_taken(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert refusals(in_blocks(page), whole=True) == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_the_prose_of_a_page_names_exists(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert refusals(in_prose(page), whole=False) == {}


def test_commands_are_found_where_pages_have_them() -> None:
    found = {program for page in PAGES for program, _ in [*in_blocks(page), *in_prose(page)]}
    assert found == {"tpustack", "tpu-training", "python -m localcloud", "make"}
    assert ("tpustack", "local env") in list(in_blocks("README.md"))


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("make", "tests"),
        ("make", "demo KEP=1"),
        ("tpustack", "chek"),
        ("tpustack", "ci previews"),
        ("tpustack", "cost --stak dev"),
        ("tpustack", "local strat"),
        ("tpu-training", "trian"),
        ("tpu-training", "train --batchsize=3"),
        ("python -m localcloud", "faults ad"),
    ],
)
def test_a_command_that_does_not_exist_is_refused(program: str, arguments: str) -> None:
    assert refusal(program, arguments, whole=False)
