"""The command line: quick to answer, plain when something is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest


def tpustack(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tpustack", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["demo", "--architecture", "gpu"], "'gpu' is not one of 'vm', 'node'"),
        (["demo", "--nosuch"], "No such option"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = tpustack(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
