"""Whatever stands where a stack's name does: it is refused in words, and nothing comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.examples import examples
from tpustack.ci import pipeline
from tpustack.ci.command import command
from tpustack.errors import TpustackError

HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "dev/../prod",
    "dev\nprod",
    "dev;id",
    "$(id)",
    "`id`",
    "--help",
    "-",
    "",
    ".",
    "--upload-pack=touch x",
    "\u202eved",
    "organization/tpu-stack/prod",
    "pr-1/../dev",
    "pr-٧",
    "a" * 5000,
    "%2e%2e/dev",
    "dev ",
]
NAMES = st.sampled_from(HOSTILE) | st.text(
    st.sampled_from("./\\-$`;|&\n %~{}") | st.characters(codec="utf-8", exclude_characters="\0"),
    max_size=40,
)
"""An argument has no null byte and no half of a pair."""
COMMANDS = (
    ("preview", "--stack={}"),
    ("deploy", "--stack={}"),
    ("drift", "--stack={}"),
    ("destroy", "--stack={}", "--confirm={}"),
    ("preview", "--base={}", "--output=no/such"),
    ("preview", "--stack=dev", "--policies-of={}"),
    ("deploy", "--stack=dev", "--policies-of={}"),
    ("comment", "--request={}"),
    ("comment", "--request=7", "--of={}"),
    ("deploy", "--request={}", "--branch=main"),
    ("plans", "--commit={}"),
)


@pytest.fixture(autouse=True)
def nothing_is_reached(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No backend, no forge, and no stack file but copies: what gets there fails in words, too."""
    monkeypatch.setattr("tpustack.ci.command.root", lambda: project)
    for name in ("PULUMI_BACKEND_URL", "GITHUB_REPOSITORY", "GITHUB_TOKEN", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)


@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(NAMES)
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_refuses_hostile_names_with_a_message(
    arguments: tuple[str, ...], name: str
) -> None:
    filled = [each.replace("{}", name) for each in arguments]
    done = CliRunner().invoke(command, filled)
    assert done.exit_code != 0
    assert isinstance(done.exception, SystemExit | TpustackError), repr(done.exception)


@given(NAMES)
def test_no_other_name_is_a_requests_stack(name: str) -> None:
    if pipeline.REQUEST.fullmatch(name):
        assert name.isascii()
        assert name == pipeline.request_stack(int(name.removeprefix("pr-")))


@pytest.mark.parametrize("arguments", [["deploy", "--branch=main"], ["preview"]])
def test_a_run_without_a_backend_writes_no_stack_file(project: Path, arguments: list[str]) -> None:
    """A name of the tests above may be a number by chance."""
    before = sorted((project / "stacks").iterdir())
    done = CliRunner().invoke(command, [*arguments, "--request=1"])
    assert "PULUMI_BACKEND_URL is not set" in str(done.exception)
    assert sorted((project / "stacks").iterdir()) == before
