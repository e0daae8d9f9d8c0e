"""This project's program in a folder of its own, with other settings and no real training.

The integration tests and the measurements that need an engine work in such folders.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from localcloud.testing import Session
from tpu_infra.settings.parse import stack_path
from tpustack.engine import toolchain
from tpustack.errors import TpustackError
from tpustack.local import LocalCloudCommand
from tpustack.project import root

PROJECT = {"gcp:project": "tpu-stack-local"}
# Stands in for the trainer where only the infrastructure counts: it says what it was given.
_TRAINER = """
import os, sys
print("trainer got", " ".join(sys.argv[1:]), flush=True)
print("training finished test_accuracy=1.0", flush=True)
"""


@contextmanager
def running(cloud: LocalCloudCommand, *options: str) -> Iterator[LocalCloudCommand]:
    """Start a local cloud with `options` on a free port, and stop it in the end."""
    cloud.run("start", "--port", "0", *options)
    try:
        yield cloud
    finally:
        cloud.run("stop")


def make_trainer(folder: Path, program: str = "") -> Path:
    """A wheel of a training package that is this program, or finishes at once."""
    wheel = folder / "tpu_stack_training-0.0.1-py3-none-any.whl"
    info = "tpu_stack_training-0.0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tpu_training/__init__.py", "")
        archive.writestr("tpu_training/__main__.py", program or _TRAINER)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tpu-stack-training\nVersion: 0.0.1\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def make_project(folder: Path, environment: Path = Path(sys.prefix)) -> Path:
    """A folder with this project's program, run in `environment`, and no stack files yet."""
    project = folder / "project"
    (project / "stacks").mkdir(parents=True)
    (project / "infra").symlink_to(root() / "infra")
    definition = yaml.safe_load((root() / "Pulumi.yaml").read_text(encoding="utf-8"))
    definition["runtime"]["options"]["virtualenv"] = str(environment)
    (project / "Pulumi.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    return project


def write_stack(project: Path, trainer: Path, stack: str = "local", /, **changes: Any) -> None:
    """The repository's file of a stack with changed settings, in the local cloud's project."""
    path = stack_path(root(), stack)
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    training = {"tpu-stack:training": {"wheel": str(trainer), "tensorflowVersion": "2.19.1"}}
    settings["config"] |= (
        PROJECT | training | {_key(name): value for name, value in changes.items()}
    )
    (project / "stacks" / path.name).write_text(yaml.safe_dump(settings), encoding="utf-8")


def session(cloud: LocalCloudCommand) -> Session:
    """A client of the APIs of a running local cloud."""
    environment = cloud.environment()
    made = Session()
    made.trust_env = False
    made.proxies = {"https": environment["HTTPS_PROXY"]}
    made.verify = environment["REQUESTS_CA_BUNDLE"]
    made.headers["Authorization"] = f"Bearer {environment['GOOGLE_OAUTH_ACCESS_TOKEN']}"
    return made


def _key(name: str) -> str:
    return f"gcp:{name}" if name == "project" else f"tpu-stack:{name}"


# --- Previews of stacks that do not exist yet, timed.


def preview_environment(state: Path) -> dict[str, str]:
    """The engine's environment with a backend in `state`."""
    # A preview of a new stack reads nothing from Google; any token does.
    return toolchain.environment(toolchain.find(), state) | {
        "GOOGLE_OAUTH_ACCESS_TOKEN": "none",
        "PULUMI_GCP_SKIP_REGION_VALIDATION": "true",
    }


class Previews:
    """`pulumi preview` with a backend in `state`; the programs get `variables` too."""

    def __init__(self, state: Path, **variables: str) -> None:
        self._environment = preview_environment(state) | variables

    def add(self, project: Path, stack: str) -> None:
        """Make a stack in the backend."""
        self._run(project, "stack", "init", stack)

    def seconds(self, project: Path, stack: str) -> float:
        """How long one preview takes."""
        started = time.perf_counter()
        self._run(project, "preview", "--non-interactive", "--stack", stack)
        return time.perf_counter() - started

    def _run(self, project: Path, *command: str) -> None:
        done = subprocess.run(
            ["pulumi", *command],
            cwd=project,
            env=os.environ | self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise TpustackError(f"pulumi {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
