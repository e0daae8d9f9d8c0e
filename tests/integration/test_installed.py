"""The wheels, installed into clean environments outside the checkout."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from tests.wheels import PACKAGES, sources
from tpustack.engine import toolchain
from tpustack.engine.toolchain import Toolchain
from tpustack.project import root

from .conftest import output
from .installed import Installed, constraints

COMMANDS = {"tpustack": ".", "tpu-training": "training", "localcloud": "localcloud"}
# What was made in a checkout, and the distribution with the name of the command.
LEFT_OUT = {"__pycache__", "build", "pyproject.toml", "LICENSE", "tpustack.egg-info"}
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
        # A package may be in a folder of its own: agent/tpu_agent.
        str(path.relative_to((root() / source / package).parent))
        for package in PACKAGES[source]
        for path in (root() / source / package).rglob("*")
        if path.is_file() and not LEFT_OUT & set(path.parts) and path.suffix != ".md"
    }
    assert names == files
    assert {f"{Path(package).name}/py.typed" for package in PACKAGES[source]} <= names


@pytest.mark.parametrize("source", PACKAGES)
def test_the_sources_of_a_distribution_make_the_same_wheel(
    wheels: dict[str, Path], source: str, tmp_path: Path
) -> None:
    again = sources(source, tmp_path)
    assert again.read_bytes() == wheels[source].read_bytes()


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


def test_the_command_line_runs_on_the_newest_python(newest: Installed) -> None:
    newest.install(["pip", "check", "--python", newest.python])
    assert "recover" in newest.output("tpustack", "--help")
    assert newest.output("tpustack", "settings", "zone").startswith("zone  (string, required)")
    newest.output("tpustack", "new")
    assert newest.output("tpustack", "check", "--stack", "local").startswith("local: fine")
    demo = newest.run("tpustack", "demo")
    assert "TensorFlow 2.19.1 has no wheel for Python 3.13" in demo.stderr


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


PAGE = (root() / "docs" / "own-project.md").read_text(encoding="utf-8")
# In place of `pulumi install`, which asks an index: the environment that the wheels are in. And
# what the page says in prose: `init` makes a stack, here one for the local cloud's project.
INSTALL = 'ln -s "$ENVIRONMENT" .venv'
INIT = """tpustack init trial --project tpu-stack-local --zone us-central1-b --run-on tpu \\
  --accelerator-type v2-8 --capacity spot --secrets-provider passphrase
tpustack check --stack trial
pulumi up --stack local
pulumi stack output --stack local tpu_name
"""


def typed(script: str, deploying: Installed, tools: Toolchain, folder: Path) -> str:
    """What commands write that a user types in a folder, who confirms everything."""
    binaries = (deploying.environment / "bin", tools.bin, os.defpath)
    variables = {
        **toolchain.engine(tools),
        "PATH": os.pathsep.join(map(str, binaries)),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "ENVIRONMENT": str(deploying.environment),
        "PULUMI_SKIP_CONFIRMATIONS": "true",
        "PULUMI_OPTION_SKIP_PREVIEW": "true",
    }
    return output(["bash", "-e", "-o", "pipefail", "-c", script], variables, cwd=folder)


def test_a_project_of_ones_own_goes_up_and_down_in_the_local_cloud_without_a_clone(
    deploying: Installed, tools: Toolchain, tmp_path: Path
) -> None:
    commands = PAGE.partition("\n## 2.")[2].partition("```sh\n")[2].partition("```")[0]
    assert "\npulumi install\n" in commands
    script = commands.replace("pulumi install", INSTALL).replace("pulumi up --stack local\n", INIT)
    said = typed(script, deploying, tools, tmp_path)
    assert "\nlocal: fine\n" in said
    assert "\ntrial: fine\n" in said
    assert "\ntpu-stack-local-tpu\n" in said
    # Queued, and so served by the project's own plugin.
    assert "QueuedNode tpu-node created" in said
    assert said.endswith("the local cloud is stopped\n")


def test_the_pipeline_of_a_project_of_ones_own_previews_and_deploys_without_a_clone(
    deploying: Installed, tools: Toolchain, tmp_path: Path
) -> None:
    """What its workflows run, for the stack that the local cloud can make."""
    said = typed(PIPELINE, deploying, tools, tmp_path)
    assert said.count("\nlocal: changes\n") == 2
    assert "\ndestroyed\n" in said


PIPELINE = r"""
tpustack new mine
cd mine
ln -s "$ENVIRONMENT" .venv
git init --quiet --initial-branch main
git config user.email a@b.c
git config user.name a
printf 'stacks: [local]\n' >stacks/pipeline.yaml
git add .
git commit --quiet --message one
tpustack local start
eval "$(tpustack local env --backend)"
trap 'tpustack local stop' EXIT
git switch --quiet --create change
sed -i 's/softDeleteDays: 0/softDeleteDays: 7/' stacks/Pulumi.local.yaml
git commit --quiet --all --message two
tpustack ci preview --base main --stack local || [ $? -eq 3 ]
mv build/ci build/plan
tpustack ci deploy --stack local --plans build/plan --policies-of main || [ $? -eq 3 ]
pulumi destroy --stack local >/dev/null
echo destroyed
"""


def test_the_requirements_of_a_new_project_have_hashes_of_its_wheels_and_the_whole_lock(
    deploying: Installed,
) -> None:
    deploying.output("tpustack", "new", "mine")
    made = deploying.elsewhere / "mine"
    text = (made / "requirements.txt").read_text(encoding="utf-8")
    ours = dict(line.split(" --hash=sha256:") for line in text.splitlines() if line[:1] == ".")
    assert ours == {
        f"./dist/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (made / "dist").iterdir()
    }
    assert len(ours) == len(PACKAGES)
    whole = root() / "infra" / "tpu_infra" / "template" / "requirements.txt"
    assert text.endswith(whole.read_text(encoding="utf-8"))


def test_pulumi_new_makes_the_project_of_tpustack_new_but_for_the_wheels(
    deploying: Installed, tools: Toolchain, tmp_path: Path
) -> None:
    template = root() / "infra" / "tpu_infra" / "template"
    variables = os.environ | toolchain.environment(tools, tmp_path / "state")
    command: list[str | Path] = ["pulumi", "new", template, "--offline", "--yes", "--generate-only"]
    output([*command, "--name", "ours", "--dir", tmp_path / "theirs"], variables, cwd=tmp_path)
    deploying.output("tpustack", "new", tmp_path / "ours")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    assert files(theirs) == {name for name in files(ours) if not name.startswith("dist/")} - {
        # It differs from the program's in the paths of the wheels alone.
        "components/requirements.txt"
    }
    same = {name for name in files(theirs) if cut(theirs / name) == cut(ours / name)}
    assert files(theirs) - same == {"requirements.txt"}
    assert (
        (ours / "requirements.txt")
        .read_bytes()
        .endswith((theirs / "requirements.txt").read_bytes())
    )
    assert os.access(theirs / "plugin" / "pulumi-resource-pulumi-python", os.X_OK)
    assert "template:\n" not in (ours / "Pulumi.yaml").read_text(encoding="utf-8")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def cut(file: Path) -> str:
    """Its text, without the tag by which Pulumi's service knows a template, and quotes."""
    return file.read_text(encoding="utf-8").partition("  pulumi:tags:")[0].replace('"', "").strip()


@pytest.mark.parametrize("source", PACKAGES)
def test_a_wheel_packed_from_what_is_installed_is_the_wheel_that_was_installed(
    deploying: Installed, wheels: dict[str, Path], source: str, tmp_path: Path
) -> None:
    name = wheels[source].name.partition("-")[0].replace("_", "-")
    code = f"import sys; from tpustack import project as p; p.pack({name!r}, p.Path(sys.argv[1]))"
    deploying.output("python", "-c", code, tmp_path)
    assert contents(tmp_path / wheels[source].name) == contents(wheels[source])


def contents(wheel: Path) -> dict[str, bytes | set[str]]:
    """The files of a wheel; its list of them has any order."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    return {
        name: set(text.decode().split()) if name.endswith("/RECORD") else text
        for name, text in files.items()
    }


# What Google's own client would ask, with the variables of `localcloud env`.
MAKE_A_BUCKET = """
import json, os, sys, requests
os.environ.update(json.loads(sys.argv[1]))
token = os.environ["GOOGLE_OAUTH_ACCESS_TOKEN"]
made = requests.post(
    "https://storage.googleapis.com/storage/v1/b",
    params={"project": os.environ["GOOGLE_CLOUD_PROJECT"]},
    headers={"Authorization": f"Bearer {token}"},
    json={"name": "first"},
)
print(made.status_code, made.json()["selfLink"])
"""


def test_the_local_cloud_is_installed_alone_and_answers(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    pins = constraints(tmp_path, "requirements-deploy.txt")
    ours = Installed(tmp_path, ["--constraint", pins, wheels["localcloud"]])
    ours.output("localcloud", "start", "--port", "0")
    try:
        assert "listens on    127.0.0.1:" in ours.output("localcloud", "status")
        said = ours.output(
            "python", "-c", MAKE_A_BUCKET, ours.output("localcloud", "env", "--json")
        )
        assert said == "200 https://www.googleapis.com/storage/v1/b/first\n"
        assert "bucket" in ours.output("localcloud", "status").partition("resources")[2]
    finally:
        ours.output("localcloud", "stop")
    assert ours.run("localcloud", "status").returncode == 3


def test_the_command_brings_the_local_cloud_as_an_extra(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    pins = constraints(tmp_path, "requirements-deploy.txt")
    folders = [word for path in wheels.values() for word in ("--find-links", path.parent)]
    ours = Installed(tmp_path, ["--constraint", pins, *folders, "tpu-stack[local]"])
    assert "recover" in ours.output("tpustack", "--help")
    assert "start" in ours.output("tpustack", "local", "--help")
