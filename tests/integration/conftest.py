"""The real engine, host and provider, and a local cloud of the test's own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from localcloud.app import LocalCloud
from localcloud.cli import main as localcloud
from localcloud.lifecycle import RequestsLog, run_file
from localcloud.testing import Session
from tests.patience import PATIENCE
from tests.sandbox import make_project, make_trainer, session, write_stack
from tpu_infra.deployer import Permissions
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Stack
from tpustack.engine.toolchain import Toolchain
from tpustack.errors import TpustackError
from tpustack.local import LocalCloudCommand
from tpustack.project import root

from .deployer import Deployer
from .forked import forking
from .installed import UV, Installed, build_wheels, constraints

Settings = dict[str, Any]
Deploy = Callable[..., Stack]
Pulumi = Callable[..., "subprocess.Popen[str]"]


def output(
    command: Sequence[str | Path],
    env: Mapping[str, str] = os.environ,
    *,
    cwd: Path | None = None,
) -> str:
    """All that a command writes; it must succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="session")
def tools() -> Toolchain:
    return toolchain.find()


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_trainer(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def quick_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A virtual environment for programs: this one, but quick to start."""
    folder = tmp_path_factory.mktemp("python")
    with forking(folder):
        yield folder


class CloudOfTest(LocalCloudCommand):
    """Runs the commands of a local cloud in this process: to start a Python takes longer."""

    def run(self, *arguments: str) -> str:
        """Run a subcommand and return its output."""
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            code = localcloud(self.arguments(*arguments)[3:])
        if code != 0:
            raise TpustackError(f"the local cloud's `{arguments[0]}` failed: {err.getvalue()}")
        return out.getvalue()


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloudCommand]:
    """Served by this process: one of its own would read Google's documents again for each test.

    That it starts and stops as a process is shown by tests/unit/localcloud/cli and tests/e2e.
    """
    command = CloudOfTest(tmp_path / "cloud")
    made = LocalCloud(command.home)
    made.cloud.log_request = RequestsLog(command.home / "requests.log").write
    made.start()
    known = {"pid": os.getpid(), "port": made.listener.port}
    run_file(command.home).write_text(json.dumps(known), encoding="utf-8")
    yield command
    made.stop()


@pytest.fixture
def google(cloud: LocalCloudCommand) -> Session:
    """A client of the local cloud's APIs."""
    return session(cloud)


@pytest.fixture
def project(tmp_path: Path, quick_python: Path) -> Path:
    """A folder with this project's program and stack files of the test's own."""
    made = make_project(tmp_path)
    definition = yaml.safe_load((made / "Pulumi.yaml").read_text(encoding="utf-8"))
    definition["runtime"]["options"]["virtualenv"] = str(quick_python)
    (made / "Pulumi.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    return made


@pytest.fixture
def environment(tmp_path: Path, tools: Toolchain, cloud: LocalCloudCommand) -> dict[str, str]:
    return toolchain.environment(tools, tmp_path / "state") | cloud.environment()


@pytest.fixture
def deploy(
    project: Path, environment: dict[str, str], trainer: Path, cloud: LocalCloudCommand
) -> Deploy:
    """Makes a stack with the given settings: those of stack `local`, changed."""
    made: dict[str, Stack] = {}

    def make(stack: str = "local", **changes: Any) -> Stack:
        write_stack(project, trainer, stack, **changes)
        if stack == "local-node":
            cloud.run("faults", "set", "deny-tpu-nodes", '{"on": false}')
        if stack not in made:
            made[stack] = Backend(environment, project).select(stack)
        return made[stack]

    return make


@pytest.fixture
def deployer(
    google: requests.Session, cloud: LocalCloudCommand, environment: dict[str, str]
) -> Callable[..., Deployer]:
    """Lets the engine run as an account with exactly the permissions given, and no others."""

    def become(permissions: Permissions, objects: str = "") -> Deployer:
        account = Deployer(google, cloud)
        account.grant(permissions, objects)
        environment["GOOGLE_OAUTH_ACCESS_TOKEN"] = account.token()
        return account

    return become


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


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Installed:
    """All of them, with what the demo takes: a TensorFlow for the CPU, and data."""
    folder = tmp_path_factory.mktemp("installed")
    command = f"tpu-stack[demo] @ {wheels['.'].as_uri()}"
    pins = constraints(folder, "requirements.txt")
    return Installed(folder, ["--constraint", pins, *wheels.values(), command])


@pytest.fixture(scope="session")
def deploying(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Installed:
    """What `make setup-deploy` installs; uv is not in its own cache."""
    folder = tmp_path_factory.mktemp("deploying")
    pins = constraints(folder, "requirements-deploy.txt")
    made = Installed(folder, ["--constraint", pins, *wheels.values()])
    shutil.copy(UV, made.environment / "bin")
    return made


NEWEST = "3.13"


def newest_python() -> str | None:
    """The newest Python that the commands run on: one that uv knows, or one of pyenv's."""
    command: list[str | Path] = [UV, "python", "find", "--no-python-downloads", NEWEST]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    pyenvs = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    all_found = [found.stdout.strip(), *map(str, pyenvs.glob(f"{NEWEST}.*/bin/python3"))]
    return next(filter(None, all_found), None)


@pytest.fixture(scope="session")
def newest(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Installed:
    """What deploying takes, on the newest Python that it runs on."""
    python = newest_python()
    if python is None:
        pytest.skip(f"this machine has no Python {NEWEST}")
    folder, lock = tmp_path_factory.mktemp("newest"), root() / "requirements-deploy.txt"
    try:
        made = Installed(folder, ["--require-hashes", "-r", lock], python)
    except AssertionError:
        pytest.skip(f"uv's cache lacks packages for Python {NEWEST}")
    made.install(["pip", "install", "--no-deps", "--python", made.python, *wheels.values()])
    shutil.copy(UV, made.environment / "bin")
    return made
