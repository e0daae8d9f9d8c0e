"""Wrong command lines of `tpustack ci`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tpustack.conftest import Run
from tpustack.engine import toolchain


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["preview"], "PULUMI_BACKEND_URL is not set"),
        (["preview", "--base", "origin/nosuch"], "`git merge-base origin/nosuch HEAD` failed"),
        (["deploy", "--request", "7"], "use --request and --branch together"),
        (["deploy", "--stack", "dev", "--plans", "no/such"], "'no/such' does not exist"),
        (["deploy", "--stack", "dev", "--stack", "mine"], "the pipeline doesn't deploy mine."),
        (
            ["destroy", "--stack", "prod", "--confirm", "dev"],
            "--confirm 'dev' is not the name of the stack, 'prod'",
        ),
        (["drift", "--stack", "../dev"], "is no name of a stack"),
        (["drift"], "PULUMI_BACKEND_URL is not set"),
        (["comment", "--request", "7", "--stack=dev", "--output", "no/such"], "has no results"),
        (["comment", "--request", "7", "--output", "no/such"], "whose results to post is not set"),
        (["plans", "--commit", "c0"], "not set: GITHUB_REPOSITORY, GITHUB_TOKEN"),
    ],
)
def test_problems_of_settings_are_reported_before_the_engine_runs(
    arguments: list[str], why: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PULUMI_BACKEND_URL", "GITHUB_REPOSITORY", "GITHUB_TOKEN", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    done = run("ci", *arguments)
    assert done.code == 2
    assert why in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("arguments", "backend", "why"),
    [
        (["preview"], "", "PULUMI_BACKEND_URL is not set"),
        (["preview", "--stack", "nosuch"], "file:///tmp", "has no file Pulumi.nosuch.yaml"),
        (["deploy", "--request", "7"], "", "use --request and --branch together"),
    ],
)
def test_a_missing_engine_is_told_after_what_is_wrong_and_with_it(
    arguments: list[str],
    backend: str,
    why: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
    monkeypatch.setattr(toolchain, "clone", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("ci", *arguments, "--output", str(tmp_path))
    assert done.code == 2
    wrong, missing = done.err.splitlines()
    assert why in wrong
    assert missing.startswith("pulumi is not on PATH")
