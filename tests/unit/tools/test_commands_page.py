"""docs/commands.md: every command with its options and exit codes, as the programs have them."""

from __future__ import annotations

import re

import commands_page
import pytest

from tests.unit.structure.modules import ROOT
from tpustack.ci.result import Outcome
from tpustack.errors import TpustackError, UsageError

PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? (.+)\n\n((?:.*\n)*?)(?=^##|\Z)", PAGE, re.M))


def test_the_page_is_what_the_commands_say() -> None:
    assert commands_page.page() == PAGE, "run `make docs`"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tpustack doctor", "--stack TEXT"),
        ("tpustack job submit", "--command"),
        ("tpustack ci deploy", "--plans DIRECTORY"),
        ("tpustack local faults preempt", "usage: tpustack local faults preempt"),
        ("tpustack local start", "--port"),
        ("tpu-training train", "--model-dir MODEL_DIR`: directory or gs:// URL for checkpoints"),
        ("tpu-training data convert", "[required]"),
        ("tpu-training doctor env", "--tpu TPU"),
        ("Parameters of a training", "`--learning_rate=0.004`: peak of the learning rate"),
    ],
)
def test_each_program_is_there_with_its_options(command: str, words: str) -> None:
    assert words in SECTIONS[command]


def test_the_exit_codes_are_those_of_the_programs() -> None:
    codes = SECTIONS["Exit codes"]
    assert f"| {TpustackError.exit_code} | failed" in codes
    assert f"| {UsageError.exit_code} | wrong input" in codes
    assert "| 3 | | the local cloud isn't running | |" in codes
    assert "| 75 | | | interrupted by SIGTERM" in codes
    for outcome in Outcome:
        assert f"{outcome.exit_code} " in SECTIONS["tpustack ci"]
