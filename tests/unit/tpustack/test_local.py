"""`tpustack local env` leads clients to the local cloud, and leaves Pulumi alone unless asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from tpustack import local
from tpustack.engine import toolchain
from tpustack.local import local_command


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Sequence[str]]:
    seen: list[Sequence[str]] = []

    def pass_on(arguments: Sequence[str]) -> int:
        seen.append(tuple(arguments))
        return 0

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = toolchain.Toolchain(tmp_path, tmp_path / "pulumi-resource-gcp", "Pulumi")
    monkeypatch.setattr(local, "pass_on", pass_on)
    monkeypatch.setattr(toolchain, "find", lambda: found)
    monkeypatch.setattr("tpustack.project.state", lambda: tmp_path / "state")
    return seen


def test_env_sets_nothing_of_pulumis_and_looks_for_no_engine(
    passed_on: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find", lambda: pytest.fail("looked for the engine"))
    done = CliRunner().invoke(local_command, ["env"])
    assert (done.exit_code, done.output, passed_on) == (0, "", [("env",)])


def test_with_backend_it_sets_pulumis_and_names_them(passed_on: list[Sequence[str]]) -> None:
    done = CliRunner().invoke(local_command, ["env", "--backend"])
    assert passed_on == [("env",)]
    names = [line.split("=")[0].removeprefix("export ") for line in done.stdout.splitlines()]
    assert {"PATH", "PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_HOME"} <= set(names)
    assert done.stderr.endswith(f": {', '.join(names)}\n")


@pytest.mark.parametrize("arguments", [("logs", "--backend"), ("env", "--json", "--backend")])
def test_elsewhere_the_option_is_left_to_be_refused(
    passed_on: list[Sequence[str]], arguments: tuple[str, ...]
) -> None:
    assert CliRunner().invoke(local_command, arguments).output == ""
    assert passed_on == [arguments]
