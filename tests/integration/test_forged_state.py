"""A state in which someone has put code, on the real engine."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sandbox import PROJECT, make_project
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Stack
from tpustack.engine.toolchain import Toolchain
from tpustack.errors import TpustackError

URN = "urn:pulumi:local::tpu-stack::"
PROVIDER = f"{URN}pulumi:providers:pulumi-python::default"
NUMBER = "c6acfc2f-5ad4-4cdc-8412-c7718a1189d1"


class Forged:
    """A pickle of this touches a file as soon as it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def state_with(pickled: bytes) -> dict[str, Any]:
    """The state of a stack with one request in the queue, whose provider is this pickle."""
    properties = {"__provider": base64.b64encode(pickled).decode(), "name": "tpu"}
    request = {
        "urn": f"{URN}pulumi-python:dynamic/tpu:QueuedResource::tpu",
        "type": "pulumi-python:dynamic/tpu:QueuedResource",
        "custom": True,
        "id": "projects/p/locations/us-central1-b/queuedResources/tpu",
        "inputs": properties,
        "outputs": properties,
        "provider": f"{PROVIDER}::{NUMBER}",
    }
    provider = {
        "urn": PROVIDER,
        "type": "pulumi:providers:pulumi-python",
        "custom": True,
        "id": NUMBER,
        "inputs": {},
        "outputs": {},
    }
    manifest = {"time": "2026-01-01T00:00:00Z", "magic": "", "version": ""}
    return {
        "version": 3,
        "deployment": {"manifest": manifest, "resources": [provider, request]},
    }


@pytest.fixture
def project(tmp_path: Path, quick_python: Path) -> Path:
    """The program of this checkout, with a stack `local` of the least settings."""
    made = make_project(tmp_path, quick_python)
    (made / "stacks" / "Pulumi.local.yaml").write_text(yaml.safe_dump({"config": PROJECT}))
    return made


@pytest.fixture
def environment(tmp_path: Path, tools: Toolchain) -> dict[str, str]:
    return toolchain.environment(tools, tmp_path / "state")


@pytest.fixture
def stack(project: Path, environment: dict[str, str], tmp_path: Path) -> Stack:
    """A stack whose state runs code that touches the file `touched`."""
    made = Backend(environment, project).select("local")
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(state_with(pickle.dumps(Forged(tmp_path / "touched")))))
    run(project, environment, "stack", "import", f"--file={forged}")
    return made


def run(project: Path, environment: dict[str, str], *arguments: str) -> str:
    """What `pulumi` says, whether it succeeds or fails."""
    done = subprocess.run(
        ["pulumi", *arguments, "--stack=local", "--non-interactive", "--color=never"],
        cwd=project,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


REFRESH = ("refresh", "--yes", "--skip-preview")


def test_pulumi_itself_runs_code_of_a_state_and_with_this_projects_provider_it_does_not(
    stack: Stack, project: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    said = run(project, environment, *REFRESH)
    assert "names a dynamic provider that this checkout doesn't have" in said
    assert not (tmp_path / "touched").exists()

    definition = yaml.safe_load((project / "Pulumi.yaml").read_text(encoding="utf-8"))
    del definition["plugins"]
    (project / "Pulumi.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    run(project, environment, *REFRESH)
    assert (tmp_path / "touched").exists()


def test_the_pipeline_and_recover_start_nothing_on_such_a_state(
    stack: Stack, tmp_path: Path
) -> None:
    operations: list[Callable[[], object]] = [
        lambda: stack.up(ignore),
        lambda: stack.renew([], ignore),
        lambda: stack.refresh(ignore),
        lambda: stack.destroy(ignore),
        lambda: stack.preview(tmp_path / "plan.json", ignore, refresh=True),
        lambda: stack.deploy(tmp_path / "plan.json", ignore),
        lambda: stack.drift(ignore),
        lambda: stack.reread(ignore),
        lambda: stack.clear(ignore),
        lambda: stack.recovery(ignore).locks(),
    ]
    for operation in operations:
        with pytest.raises(TpustackError, match="'tpu': its dynamic provider is not one of this"):
            operation()
    assert not (tmp_path / "touched").exists()


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""
