"""The wheels, installed into clean environments outside the checkout."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.wheels import PACKAGES
from tpustack.project import root

from .installed import Installed

COMMANDS = {"tpustack": ".", "tpu-training": "training", "localcloud": "localcloud"}
# What only a checkout needs: what was made there, and the way from infra/ to the environment.
LEFT_OUT = {"__pycache__", "build", ".venv"}
# The environment of the whole project, when it was measured first.
WHOLE_MEGABYTES = 2500


# The environments are made once, by the process that runs all of these.
pytestmark = pytest.mark.xdist_group("installed")


@pytest.mark.parametrize("source", PACKAGES)
def test_a_wheel_holds_all_of_its_packages_and_nothing_else(
    wheels: dict[str, Path], source: str
) -> None:
    with zipfile.ZipFile(wheels[source]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {
        # A package may be in a folder of its own: agent/tpu_agent, ../core/tpu_core.
        str(path.relative_to((root() / source / package).parent))
        for package in PACKAGES[source]
        for path in (root() / source / package).rglob("*")
        if path.is_file() and not LEFT_OUT & set(path.parts) and path.suffix != ".md"
    }
    assert names == files
    assert {f"{Path(package).name}/py.typed" for package in PACKAGES[source]} <= names


def test_all_commands_say_the_same_version(installed: Installed) -> None:
    versions = {installed.output(command, "--version").split()[-1] for command in COMMANDS}
    assert len(versions) == 1


def test_what_an_installed_distribution_depends_on_is_installed(installed: Installed) -> None:
    installed.install(["pip", "check", "--python", installed.python])


def test_the_command_line_works_outside_a_checkout(installed: Installed) -> None:
    assert "recover" in installed.output("tpustack", "--help")
    assert "us-central1-b" in installed.output("tpustack", "catalog")
    cost = installed.output(
        "tpustack", "cost", "--accelerator-type", "v3-8", "--region", "us-central1"
    )
    assert "v3-8" in cost


def test_an_installed_trainer_trains_the_digits(installed: Installed) -> None:
    installed.output("tpu-training", "data", "convert", "--source", "digits", "--output", "data")
    said = installed.output(
        *("tpu-training", "train-and-evaluate", "--data=data", "--model-dir=results"),
        *("--epochs=2", "--steps_per_loop=10", "--global_batch_size=64"),
    )
    assert "training finished" in said


def test_deploying_takes_a_quarter_of_the_whole_environment(deploying: Installed) -> None:
    assert deploying.megabytes() <= WHOLE_MEGABYTES / 4
    packages = {path.name for path in deploying.environment.glob("lib/*/site-packages/*")}
    assert {"tensorflow", "keras", "pytest"} & packages == set()
    deploying.install(["pip", "check", "--python", deploying.python])


def test_who_only_deploys_has_the_local_cloud_to_try_it(deploying: Installed) -> None:
    deploying.output("tpustack", "local", "start")
    assert "HTTPS_PROXY" in deploying.output("tpustack", "local", "env")
    deploying.output("tpustack", "local", "stop")
