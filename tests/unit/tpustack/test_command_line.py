"""The command line: quick to answer, plain when something is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import localcloud
from tests.in_turn import Commands, run_in_turn
from tests.unit.tpustack.conftest import Run
from tpustack import console
from tpustack.__main__ import _WHERE, COMMANDS, cli
from tpustack.engine import backend
from tpustack.errors import UsageError
from tpustack.project import root

RUN = """
from tpustack.__main__ import main

def run(arguments):
    sys.argv = ["tpustack", *arguments]
    main()
"""
WRONG = {
    ("nosuch",): "No such command 'nosuch'",
    ("chek",): "error: No such command 'chek'. Did you mean 'check'? Try: tpustack --help\n",
    ("demo", "--architecture", "gpu"): "'gpu' is not one of 'vm', 'node'",
    ("demo", "--nosuch"): "No such option",
}
RIGHT = [("local", "--help"), ("local", "env", "--help"), ("--version",), ("local", "--version")]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return run_in_turn(RUN, [*WRONG, *RIGHT], tmp_path_factory.mktemp("anywhere"))


def test_help_lists_the_commands_and_loads_neither_tensorflow_nor_pulumi() -> None:
    code = (
        "import sys; sys.argv = ['tpustack', '--help']\n"
        "from tpustack.__main__ import cli\n"
        "cli.main(standalone_mode=False)\n"
        "heavy = {'tensorflow', 'pulumi', 'googleapiclient', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout


@pytest.mark.parametrize(("arguments", "message"), WRONG.items())
def test_wrong_input_is_one_message_and_exit_code_2(
    arguments: tuple[str, ...], message: str, done: Commands
) -> None:
    ended = done[arguments]
    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stderr.startswith("error: ")
    assert "Try: tpustack " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_shell_offers_stacks_zones_and_types() -> None:
    def offered(line: str) -> set[str]:
        words = line.split(" ")
        ask = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        done = CliRunner().invoke(
            cli, prog_name="tpustack", env={"_TPUSTACK_COMPLETE": "bash_complete", **ask}
        )
        return {entry.partition(",")[2] for entry in done.output.splitlines()}

    assert offered("tpustack check --stack p") == {"prod"}
    assert offered("tpustack init mine --zone us-west") >= {"us-west1-c"}
    assert offered("tpustack cost --accelerator-type v3-2") == {"v3-256", "v3-2048"}
    assert offered("tpustack che") == {"check"}


def test_the_local_cloud_goes_by_the_name_that_it_was_called_by(done: Commands) -> None:
    whole, part = done["local", "--help"].stdout, done["local", "env", "--help"].stdout
    assert whole.startswith("Usage: tpustack local [OPTIONS] COMMAND [ARGS]...\n")
    assert "$(tpustack local env)" in whole
    assert part.startswith("Usage: tpustack local env ")


def test_all_commands_have_the_same_version(done: Commands) -> None:
    said = {done["--version",].stdout, done["local", "--version"].stdout}
    assert {text.rpartition(" ")[2] for text in said} == {f"{localcloud.__version__}\n"}
    # What `uvx tpustack` installs has no code, and so says its version in a file.
    alias = (root() / "tpustack" / "pyproject.toml").read_text(encoding="utf-8")
    numbers = re.findall(r'(?:^version = "|^  "tpu-stack.*==)([^";]+)', alias, re.MULTILINE)
    assert numbers == [localcloud.__version__] * 3


# Each command about one stack, with what it needs besides.
OF_ONE_STACK = {
    ("check",): "--live",
    ("ci", "destroy"): "--confirm dev",
    ("ci", "limits"): "",
    ("ci", "preview"): "",
    ("cost",): "",
    ("doctor",): "",
    ("follow",): "",
    ("forecast",): "--steps 1 --step-seconds 1",
    ("goodput",): "",
    ("job", "artifacts"): "one",
    ("job", "list"): "",
    ("job", "logs"): "one",
    ("job", "resubmit"): "one",
    ("job", "show"): "one",
    ("job", "stop"): "one",
    ("job", "submit"): "--command true",
    ("job", "sweep"): "--command true --param rate=1,2",
    ("job", "trials"): "one",
    ("job", "wait"): "one",
    ("logs",): "",
    ("code",): "",
    ("notebook",): "",
    ("permissions",): "",
    ("prove",): "",
    ("recover",): "",
    ("ssh",): "",
    ("top",): "",
}


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        one = group.get_command(click.Context(group), name)
        if isinstance(one, click.Group):
            yield from commands(one, *path, name)
        elif one is not None:
            yield (*path, name), one


def selected(stack: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Pulumi have selected a stack, without asking an engine."""
    monkeypatch.setattr(backend, "users_own", lambda: SimpleNamespace(selected=lambda: stack))


def test_help_names_the_default_of_each_option_stack() -> None:
    helps = {
        path: parameter.help or ""
        for path, one in commands(cli)
        for parameter in one.params
        if isinstance(parameter, click.Option) and "--stack" in parameter.opts
    }
    # Its own files have a default, and results of one stack alone are asked for.
    del helps["bootstrap",], helps["ci", "comment"]
    assert [path for path, text in helps.items() if "[default: " not in text] == []
    assert {path for path, text in helps.items() if "selected stack]" in text} == {*OF_ONE_STACK}


@pytest.mark.parametrize("path", OF_ONE_STACK)
def test_a_command_about_one_stack_takes_the_one_that_pulumi_selected(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    selected(None, monkeypatch)
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///nowhere")
    monkeypatch.setattr(sys, "argv", ["tpustack", *path, *OF_ONE_STACK[path].split()])
    with pytest.raises(UsageError, match=r"^no stack is selected\. Name one with --stack"):
        cli.main(standalone_mode=False)


def test_the_cost_without_a_stack_is_that_of_the_selected_one(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected("dev", monkeypatch)
    left_out, named = run("cost"), run("cost", "--stack", "dev")
    assert (left_out.code, left_out.out) == (0, named.out)
    # What acts on a stack that no one has named says which one it is.
    assert left_out.err == f"Pulumi's selected stack: dev\n{named.err}"


def test_a_look_at_another_stack_leaves_the_selected_one_selected(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"vm_name": "a-vm"}
    own = SimpleNamespace(stack=lambda name: SimpleNamespace(outputs=lambda: outputs))
    monkeypatch.setattr(backend, "users_own", lambda: own)
    assert backend.outputs_of("dev") == outputs


TABLES = (
    ("catalog",),
    ("catalog", "--type", "v5e"),
    ("catalog", "runtimes"),
    ("catalog", "machines", "--zone", "us-central1-a"),
    ("cost", "--accelerator-type", "v3-32", "--region", "europe-west4"),
    ("settings",),
)


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("arguments", TABLES)
def test_no_line_of_a_table_is_wider_than_the_terminal(
    arguments: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "columns", lambda: columns)
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0
    assert [line for line in done.stdout.splitlines() if len(line) > columns] == []


SHOWING = """
import sys
import click
from rich.console import Console
from tpustack.__main__ import cli, main

@cli.command("show")
def show():
    Console(force_terminal=True).print("\u25cf step \u2026", style="bold red")
    click.echo("loss \u2013")

sys.argv = ["tpustack", "show"]
main()
"""


# Click takes ASCII for a mistake of the environment, and writes UTF-8.
@pytest.mark.parametrize(
    ("encoding", "loss"), [("latin-1", b"loss ?"), ("ascii", b"loss \xe2\x80\x93")]
)
def test_a_terminal_without_unicode_and_colour_gets_question_marks_and_plain_text(
    encoding: str, loss: bytes
) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": encoding, "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-c", SHOWING]
    done = subprocess.run(command, env=plain, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines() == [b"? step ?", loss]


def test_a_pipe_gets_each_row_as_one_line_with_all_columns() -> None:
    done = CliRunner().invoke(cli, ("catalog", "--type", "v5e"), env={"COLUMNS": "40"})
    assert "CIDR" in done.stdout.splitlines()[0]


@pytest.mark.parametrize("group", ["ci", "job"])
def test_the_help_of_a_group_has_a_whole_line_for_each_command(group: str) -> None:
    done = CliRunner().invoke(cli, (group, "--help"), env={"COLUMNS": "80"})
    listed = done.stdout.partition("Commands:\n")[2].splitlines()
    assert len(listed) == 10
    assert [line for line in listed if "..." in line or len(line) > 80] == []


def test_the_list_of_commands_has_a_line_for_each() -> None:
    assert [text for text in COMMANDS.values() if len(text) > 55 or "..." in text] == []


def test_the_help_names_every_command_on_one_screen() -> None:
    lines = CliRunner().invoke(cli, ("--help",), env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert COMMANDS.keys() == _WHERE.keys() <= {line.split()[0] for line in lines if line}
