"""The commands that people are told to run exist, with the options that they have.

The commands in blocks of training/recipes have tests of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
import pytest

from localcloud import cli as localcloud
from tpu_training.__main__ import parse
from tpu_training.errors import InputError
from tpustack.__main__ import cli

from .conftest import PAGES, REPOSITORY
from .named import Named, in_blocks, in_prose, named
from .recorded import recorded

MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
VARIABLES = set(re.findall(r"^([A-Z]+) [?:]=", MAKEFILE, re.M))
TRAINING = {"train", "evaluate", "train-and-evaluate", "lr-range-test"}
TOOLS = recorded()
TESTED_ELSEWHERE = ("training/recipes/",)


def refusals(commands: Iterable[Named]) -> dict[str, str]:
    """Map each command that its program would not take to the reason."""
    return {
        f"{one.where}: {one.program} {one.arguments}": why
        for one in commands
        if one.program != "tpu-training" or not one.where.startswith(TESTED_ELSEWHERE)
        if (why := refusal(one))
    }


def refusal(one: Named) -> str | None:
    """Say why the program would not take the arguments; unless `whole`, some may be missing."""
    if one.words and (one.words[0].isupper() or one.words[0].startswith("$")):
        return None  # It stands for any.
    if one.program in TOOLS:
        return TOOLS[one.program].refusal(one.words)
    try:
        check(one)
    except (click.UsageError, InputError, ValueError) as error:
        message = error.message if isinstance(error, click.UsageError) else str(error)
        named_file_is_missing = "there is no such file" in message or "does not exist" in message
        incomplete = not one.whole and "required" in message
        return None if incomplete or named_file_is_missing else message
    except SystemExit as end:
        return None if end.code == 0 else "argparse refuses it"
    return None


def check(one: Named) -> None:
    """Raise an error of some kind if one of our own programs would not take the arguments."""
    if one.program == "make":
        check_make(one.words)
    elif one.program == "tpustack":
        check_tpustack(one.words, whole=one.whole)
    elif one.program == "tpu-training":
        check_training(one.words, whole=one.whole)
    else:
        check_localcloud(one.words)


def check_make(words: list[str]) -> None:
    for word in words:
        name, is_variable, _ = word.partition("=")
        if name not in (VARIABLES if is_variable else TARGETS):
            raise ValueError(f"the Makefile has no {name}")


def check_tpustack(words: list[str], *, whole: bool) -> None:
    command, words = subcommand(cli, words)
    if command.name == "local":
        # What tpustack itself takes there.
        check_localcloud(words if words != ["env", "--backend"] else ["env"])
    elif whole:
        command.make_context(command.name, words)
    else:
        command.make_parser(click.Context(command)).parse_args(words)


def subcommand(command: click.Command, words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and its arguments."""
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            raise click.UsageError(f"no command {words[0]}")
        command, words = found, words[1:]
    return command, words


def check_training(words: list[str], *, whole: bool) -> None:
    complete = whole or not set(words[:1]) & TRAINING or any("--data" in word for word in words)
    parse(words if complete else [*words, "--data=data", "--model-dir=results"])


def check_localcloud(words: list[str]) -> None:
    command, words = subcommand(localcloud.cli, words)
    if not isinstance(command, click.Group):
        command.make_context(command.name, words)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_block_of_a_page_is_taken(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert refusals(in_blocks(page)) == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_the_prose_of_a_page_names_exists(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert refusals(in_prose(page)) == {}


@pytest.mark.slow
def test_every_command_in_a_message_a_known_error_or_a_workflow_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert refusals(one for one in named() if one.where not in PAGES) == {}


def test_commands_are_found_where_they_are() -> None:
    found = {(one.program, one.arguments) for one in named()}
    assert {program for program, _ in found} == {
        *("tpustack", "tpu-training", "python -m localcloud", "make", "pulumi", "gcloud")
    }
    assert ("tpustack", "local env") in {
        (one.program, one.arguments) for one in in_blocks("docs/try-locally.md")
    }
    wheres = {one.where.partition("/")[0] for one in named()}
    assert {"README.md", "docs", "infra", "tpustack", "training", "localcloud"} <= wheres
    assert "training/tpu_training/errors/known_errors.json" in {one.where for one in named()}
    # A constant that a message puts between backticks, and a command that a finding ends with.
    by_itself = "destroy --target-dependents --target '**:V2Vm::**'"
    assert (
        Named("infra/tpu_infra/resources/request.py", "pulumi", by_itself, whole=False) in named()
    )
    assert ("gcloud", "billing projects link X --billing-account ACCOUNT") in found


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
        ("pulumi", "up --replace"),
        ("pulumi", "up --replace --yes"),
        ("pulumi", "upp"),
        ("pulumi", "stack outputs"),
        ("pulumi", "stack output --stack dev tpu_name tpu_names"),
        ("pulumi", "destroy --refres"),
        ("gcloud", "compute tpu list"),
        ("gcloud", "compute tpus tpu-vm start NAME --zones ZONE"),
        ("gcloud", "compute tpus tpu-vm start NAME --zone"),
    ],
)
def test_a_command_that_does_not_exist_is_refused(program: str, arguments: str) -> None:
    assert refusal(Named("here", program, arguments, whole=False))


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("pulumi", "up --refresh --stack=dev -y"),
        ("pulumi", "stack"),
        ("gcloud", "compute tpus"),
        ("gcloud", "compute tpus tpu-vm list --zone=us-central1-b --project mine"),
        ("gcloud", "compute tpus tpu-vm list --no-user-output-enabled"),
    ],
)
def test_a_command_that_exists_is_taken(program: str, arguments: str) -> None:
    assert refusal(Named("here", program, arguments, whole=False)) is None
