"""The local cloud as its own wheel, installed where neither the checkout nor TensorFlow is."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

import localcloud
from tests.wheels import build

pytestmark = pytest.mark.server

LIBRARIES = Path(sysconfig.get_paths()["purelib"])
# Editable installs lead to the checkout, and TensorFlow is an extra.
NOT_THERE = ("__editable__", "tensorflow", "tensorboard", "keras", "tpu_stack")
PROJECT = "tpu-stack-local"

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment with the wheel and the libraries that it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv", symlinks=True)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    for entry in LIBRARIES.iterdir():
        if not entry.name.startswith(NOT_THERE) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--no-index"]
    pip += ["--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, str(build("localcloud", folder))], check=True, cwd=folder)
    return folder / "venv/bin/localcloud"


@pytest.fixture
def command(installed: Path, tmp_path: Path) -> Iterator[Command]:
    """Runs the installed `localcloud` in an empty folder."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["LOCALCLOUD_HOME"] = str(tmp_path / "home")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(installed), *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    yield run
    run("stop")


def exported(printed: str) -> dict[str, str]:
    return dict(line.removeprefix("export ").split("=", 1) for line in printed.splitlines())


def test_the_installed_command_tells_its_version(command: Command) -> None:
    assert command("--version").stdout == f"{localcloud.__version__}\n"


def test_the_installed_cloud_starts_takes_a_bucket_and_stops(command: Command) -> None:
    started = command("start")
    assert started.returncode == 0, started.stderr
    google = client(command)
    made = google.post(
        f"https://storage.googleapis.com/storage/v1/b?project={PROJECT}", json={"name": "first"}
    )
    assert (made.status_code, made.json()["name"]) == (200, "first")
    assert command("stop").stdout == "the local cloud is stopped\n"


def test_without_tensorflow_a_new_tpu_is_refused_with_the_extra_to_install(
    command: Command,
) -> None:
    command("start")
    google = client(command)
    services = f"https://serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
    google.post(f"{services}/tpu.googleapis.com:enable", json={})
    nodes = f"https://tpu.googleapis.com/v2/projects/{PROJECT}/locations/us-central1-b/nodes"
    tpu = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
    error = google.post(nodes, params={"nodeId": "t"}, json=tpu).json()["error"]
    assert error == {
        "code": 9,
        "message": "the hosts of a local TPU are servers of TensorFlow, which is not installed "
        "with the local cloud: pip install 'tpu-stack-localcloud[tpu]' (in its repository "
        "`make setup`) and start it again",
    }
    assert google.get(nodes).json() == {}


def client(command: Command) -> requests.Session:
    """A session with what `env` prints."""
    variables = exported(command("env").stdout)
    session = requests.Session()
    session.trust_env = False
    session.proxies = {"https": variables["HTTPS_PROXY"]}
    session.verify = variables["REQUESTS_CA_BUNDLE"]
    session.headers["Authorization"] = f"Bearer {variables['GOOGLE_OAUTH_ACCESS_TOKEN']}"
    return session
