"""The real engine, host and provider, and a local cloud of the test's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from tpustack import toolchain
from tpustack.engine import Engine
from tpustack.localcloud import LocalCloudCommand
from tpustack.project import ROOT
from tpustack.toolchain import Toolchain

Settings = dict[str, Any]
Deploy = Callable[..., Engine]
Pulumi = Callable[..., "subprocess.Popen[str]"]

# Stands in for the trainer where a test is about the infrastructure: it says what it was given.
TRAINER = """
import os, sys
print("trainer got", " ".join(sys.argv[1:]), flush=True)
print("training finished test_accuracy=1.0", flush=True)
"""


@pytest.fixture(scope="session")
def tools() -> Toolchain:
    return toolchain.find()


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel = tmp_path_factory.mktemp("wheel") / "tpu_stack_training-0.0.1-py3-none-any.whl"
    info = "tpu_stack_training-0.0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("training/__init__.py", "")
        archive.writestr("training/__main__.py", TRAINER)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tpu-stack-training\nVersion: 0.0.1\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloudCommand]:
    command = LocalCloudCommand(tmp_path / "cloud")
    command.run("start", "--port", "0")
    yield command
    command.run("stop")


@pytest.fixture
def google(cloud: LocalCloudCommand) -> requests.Session:
    """A client of the local cloud's APIs."""
    environment = cloud.environment()
    session = requests.Session()
    session.trust_env = False
    session.proxies = {"https": environment["HTTPS_PROXY"]}
    session.verify = environment["REQUESTS_CA_BUNDLE"]
    session.headers["Authorization"] = f"Bearer {environment['GOOGLE_OAUTH_ACCESS_TOKEN']}"
    return session


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with this project's program and stack files of the test's own."""
    project = tmp_path / "project"
    (project / "stacks").mkdir(parents=True)
    (project / "infra").symlink_to(ROOT / "infra")
    definition = yaml.safe_load((ROOT / "Pulumi.yaml").read_text(encoding="utf-8"))
    definition["runtime"]["options"]["virtualenv"] = sys.prefix
    (project / "Pulumi.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    return project


@pytest.fixture
def environment(tmp_path: Path, tools: Toolchain, cloud: LocalCloudCommand) -> dict[str, str]:
    return toolchain.environment(tools, tmp_path / "state") | cloud.environment()


@pytest.fixture
def deploy(project: Path, environment: dict[str, str], trainer: Path) -> Deploy:
    """Makes a stack with the given settings: those of stack `local`, changed."""

    def make(stack: str = "local", **changes: Any) -> Engine:
        path = ROOT / "stacks" / f"Pulumi.{stack}.yaml"
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        training = {"tpu-stack:training": {"wheel": str(trainer), "tensorflowVersion": "2.19.1"}}
        settings["config"] |= training | {_key(name): value for name, value in changes.items()}
        target = project / "stacks" / path.name
        target.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return Engine(stack, environment, project)

    return make


@pytest.fixture
def pulumi(project: Path, environment: Mapping[str, str]) -> Iterator[Pulumi]:
    """Starts the command line on a stack that `deploy` made."""
    mark = {"TPUSTACK_TEST": str(project)}

    def start(*arguments: str, stack: str = "local") -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["pulumi", *arguments, "--stack", stack],
            cwd=project,
            env={**os.environ, **environment, **mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    yield start
    # The program, its language host and the provider outlive an engine that is killed.
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark.items() <= process.environ().items():
                process.kill()


def _key(name: str) -> str:
    return f"gcp:{name}" if name == "project" else f"tpu-stack:{name}"
