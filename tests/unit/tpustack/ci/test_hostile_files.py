"""Whatever stands in a stack file: it is read without harm, refused in words, and stays inert."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings, strategies as st

from tests.examples import examples
from tpustack.ci.command import command
from tpustack.errors import TpustackError

EXAMPLES = 70
"""For each of the commands below: with FILES, 528 in all."""
COMMANDS = (
    ("preview", "--stack=dev"),
    ("deploy", "--stack=dev"),
    ("drift", "--stack=dev"),
    ("destroy", "--stack=dev", "--confirm=dev"),
    ("preview", "--request=7"),
    ("sweep",),
)
# Each line stands for nine of the one before: all of it for 43 million values.
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefg", "bcdefgh", strict=True)
)
FILES = [
    b"",
    b"\xff\xfe\x00",
    b"a: \0",
    b"[" * 5_000,
    # PyYAML's loader in C ends the process.
    b"config: " + b"[" * 200_000 + b"]" * 200_000,
    b"config: {tpu-stack:labels: " + b"[" * 900 + b"]" * 900 + b"}",
    f"{BOMB}config: {{tpu-stack:labels: *h, tpu-stack:owner: *h}}".encode(),
    b"config: &a {tpu-stack:labels: *a}",
    b"config: {tpu-stack:labels: &a [*a]}",
    b"!!python/object/apply:os.system [touch pwned]",
    b"config: {tpu-stack:zone: !!binary x}",
    b"config: {tpu-stack:zone: !!bool x, a: 2001-13-45}",
    b"config: {1: 2, [a]: b, ~: c}",
    b"config: {<<: [1]}",
    b"config: {tpu-stack:zone: " + b"9" * 5_000 + b"}",
    b"config: {tpu-stack:zone: .nan, tpu-stack:vm: .inf}",
    b"config: [1]",
    b"*x",
]
HOSTILE: st.SearchStrategy[Any] = st.sampled_from(
    [
        "$(touch pwned)",
        "`id`",
        "::set-output name=a::b",
        "a\n::error::b",
        "\r\x1b[31m",
        "\u202eved",
        "../../x",
        "x" * 20_000,
        "<!-- tpustack ci preview prod -->",
        "```\n/merge\n@everyone",
        "\ud800",
        {"secure": "v1:x"},
        [[]],
        None,
        -1,
        2**70,
    ]
)
NAMES = st.sampled_from(
    [
        *("gcp:project", "gcp:accessToken", "gcp:computeCustomEndpoint", "secretsprovider"),
        *("tpu-stack:zone", "tpu-stack:labels", "tpu-stack:bucket", "tpu-stack:training"),
        *("tpu-stack:limits", "tpu-stack:vm", "tpu-stack:tpu", "tpu-stack:nonsense", "::error::x"),
    ]
) | st.text(max_size=12)
VALUES = st.recursive(
    HOSTILE | st.text(max_size=12) | st.integers() | st.booleans(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=3),
    max_leaves=5,
)
CHANGES = st.dictionaries(NAMES, VALUES, min_size=1, max_size=4)


class Engine:
    """Does nothing, and notes what it was asked to do."""

    def __init__(self, asked: list[str], stack: str) -> None:
        self._asked, self._stack = asked, stack

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object, **__: object) -> object:
            self._asked.append(self._stack)
            raise TpustackError("no engine")

        return refuse


class NoBackend:
    """A backend that has the stack `dev`, and an engine that does nothing."""

    asked: list[str]

    def __init__(self, environment: object, root: object, policies: object = None) -> None:
        self.environment: dict[str, str] = {}

    def stacks(self) -> dict[str, None]:
        return {"dev": None}

    def stack(self, name: str) -> Engine:
        return Engine(self.asked, name)

    def elsewhere(self, folder: object) -> NoBackend:
        return self

    def create(self, name: str) -> None:
        self.asked.append(name)

    def tags(self, name: str) -> dict[str, str]:
        return {}

    def tag(self, name: str, **tags: str) -> None:
        self.asked.append(name)


@pytest.fixture(autouse=True)
def nothing_is_reached(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = "tpustack.ci.command"
    monkeypatch.setattr(f"{at}.root", lambda: project)
    monkeypatch.setattr(f"{at}.Backend", NoBackend)
    monkeypatch.setattr(f"{at}.toolchain", SimpleNamespace(lacking=str, find=dict, engine=dict))
    monkeypatch.setattr(f"{at}.build_wheel", lambda: None)
    monkeypatch.setattr(f"{at}.pipeline.remote_branches", lambda *_: {"main"})
    monkeypatch.setattr("tpustack.ci.sweep.sweep_orphans", lambda *_, **__: [])
    monkeypatch.setattr(f"{at}.Google", object)
    monkeypatch.setattr("tpustack.ci.deployment.require_project", lambda project: None)
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///nowhere")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "p")


def run(project: Path, arguments: tuple[str, ...], content: bytes) -> str:
    """Runs a command on this file; the answer is all that it said and wrote."""
    kept = {path: path.read_bytes() for path in (project / "stacks").iterdir()}
    (project / "stacks" / "Pulumi.dev.yaml").write_bytes(content)
    output, NoBackend.asked = project / "out", []
    try:
        done = CliRunner().invoke(command, [*arguments, f"--output={output}"])
        ended = done.exception or SystemExit()
        assert isinstance(ended, SystemExit | TpustackError), repr(ended)
        texts = [path.read_text(encoding="utf-8") for path in output.glob("*.md")]
        assert set(NoBackend.asked) <= {"pr-7" if "--request=7" in arguments else "dev"}
        assert not (project / "pwned").exists()
        return "\n".join([done.output, str(done.exception), *texts])
    finally:
        for path in [*output.glob("*"), project / "stacks" / "Pulumi.pr-7.yaml"]:
            path.unlink(missing_ok=True)
        for path, before in kept.items():
            path.write_bytes(before)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("content", FILES, ids=lambda content: repr(content[:40]))
def test_a_file_that_is_made_to_break_its_reader_is_refused(
    project: Path, arguments: tuple[str, ...], content: bytes
) -> None:
    run(project, arguments, content)


@settings(
    max_examples=examples(EXAMPLES),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(CHANGES)
@example({"tpu-stack:labels": {"a\n::error::b": "c"}})
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_file_with_hostile_settings_orders_nothing(
    project: Path, arguments: tuple[str, ...], changes: dict[str, Any]
) -> None:
    document = yaml.safe_load((project / "stacks" / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    document["config"] |= changes
    content = yaml.safe_dump(document, allow_unicode=False).encode("utf-8", "surrogatepass")
    said = run(project, arguments, content)
    # GitHub obeys a line that begins with two colons, GitLab one that begins with a slash.
    assert not re.search(r"^\s*(::|##\[|/[a-z])", said, re.M), said
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", said)
    assert len(re.findall(r"^\s*<!-- tpustack ci", said, re.M)) <= 1
