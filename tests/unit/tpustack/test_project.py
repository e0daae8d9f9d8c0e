"""The command line in, below and outside a project, be it a clone or a user's own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.in_turn import Commands, run_in_turn
from tpustack import bootstrap, errors, project
from tpustack.commands import new
from tpustack.console import Interrupted
from tpustack.engine import toolchain
from tpustack.errors import TpustackError, UsageError

from .conftest import Run

REPOSITORY = Path(__file__).parents[3]
PACKAGES = ("tpustack", "infra/tpu_infra", "bootstrap/tpu_bootstrap")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Another checkout than the one that this package lies in."""
    made = tmp_path / "clone"
    (made / "bootstrap").mkdir(parents=True)
    shutil.copy(REPOSITORY / "Pulumi.yaml", made)
    shutil.copy(REPOSITORY / "bootstrap" / "Pulumi.yaml", made / "bootstrap")
    return made


def test_the_project_is_the_nearest_checkout_at_or_above_the_current_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "stacks").mkdir()
    for folder in (checkout, checkout / "stacks"):
        monkeypatch.chdir(folder)
        assert project.root() == checkout


def test_where_pulumi_would_take_another_project_both_are_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout / "bootstrap")
    with pytest.raises(UsageError) as error:
        project.root()
    assert str(error.value) == (
        f"there are two projects: `pulumi` would take {checkout / 'bootstrap'}, and `tpustack` "
        f"{checkout}. Change into the one you mean"
    )


def test_in_a_folder_of_another_program_installed_packages_name_its_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: something-else\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(project, "_PACKAGE", tmp_path / "site-packages")
    with pytest.raises(UsageError, match=re.escape(f"({tmp_path}/Pulumi.yaml is of another pro")):
        project.root()


def test_elsewhere_the_project_is_the_checkout_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: something-else\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert project.root() == REPOSITORY


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as a wheel installs them: without what lies around them in the checkout."""
    folder = tmp_path_factory.mktemp("site-packages")
    for name in PACKAGES:
        source = REPOSITORY / name
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


ANYWHERE = [
    ["--help"],
    ["--version"],
    ["catalog"],
    ["cost", "--accelerator-type", "v3-8", "--region", "us-central1"],
    ["doctor", "-"],
    ["settings"],
    ["local", "--help"],
]
IN_THE_PROJECT = [
    ["check"],
    ["cost", "--stack", "dev"],
    ["init", "mine"],
    ["permissions", "--stack", "dev"],
    ["doctor"],
    ["follow", "--stack", "dev"],
    ["recover", "--stack", "dev"],
    ["bootstrap"],
    ["ci", "drift"],
    ["wheel"],
]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def done(installed: Path, elsewhere: Path) -> Commands:
    """All of the commands above, run outside a checkout."""
    # The source checkout comes later on the path, or by hooks of the editable installation.
    code = f"""
import os
os.environ.pop("LOCALCLOUD_HOME", None)
sys.path.insert(0, {str(installed)!r})
import tpustack.__main__

def run(arguments):
    sys.argv = ["tpustack", *arguments]
    tpustack.__main__.main()
"""
    path = {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    return run_in_turn(code, [*ANYWHERE, *IN_THE_PROJECT], elsewhere, **path)


@pytest.mark.parametrize("arguments", ANYWHERE, ids=" ".join)
def test_a_command_that_needs_no_project_works_anywhere(
    arguments: list[str], done: Commands
) -> None:
    ended = done[tuple(arguments)]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


@pytest.mark.parametrize("arguments", IN_THE_PROJECT, ids=" ".join)
def test_a_command_that_needs_the_project_says_so_in_one_message(
    arguments: list[str], done: Commands, elsewhere: Path
) -> None:
    ended = done[tuple(arguments)]
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"error: neither {elsewhere} nor a folder above it is a project of tpu-stack, whose "
        "Pulumi.yaml says `stackConfigDir: stacks`. Change into one, or make one with "
        "`tpustack new`\n"
    )


def test_a_new_project_is_refused_with_all_problems_of_its_folder(
    run: Run, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkout / "a b"
    (folder / "stacks").mkdir(parents=True)
    for name in ("plugin", "stacks/Pulumi.dev.yaml", "stacks/Pulumi.other.yaml"):
        (folder / name).touch()
    (folder / "Pulumi.yaml").symlink_to("nowhere")
    monkeypatch.chdir(folder)
    done = run("new")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: DIR: \"a b\" can't be the project's name (at most 100 letters, digits, hyphens, "
        "dots and underscores). Choose another folder\n"
        f"DIR: {folder} is in the project {checkout}. Choose a folder outside of it\n"
        f"DIR: {folder} has Pulumi.yaml, plugin, stacks/Pulumi.dev.yaml, which would be "
        "overwritten. Choose an empty or new folder\n"
    )


def test_a_new_project_is_no_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert f"DIR: {tmp_path}/mine is a file, which would" in run("new", f"{tmp_path}/mine").err


def test_without_wheels_to_pack_a_new_project_is_refused_and_nothing_is_created(
    run: Run, tmp_path: Path
) -> None:
    done = run("new", str(tmp_path / "mine"))
    assert (done.code, done.err) == (
        2,
        "error: tpu-stack is installed from a clone, so there is no wheel of it. Install the "
        "wheels of `make release` in another environment, and run the command there\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_of_a_new_project_that_cannot_be_written_nothing_is_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack(name: str, output: Path) -> Path:
        output.mkdir(exist_ok=True)
        # What can't be copied.
        (output / name).symlink_to("nowhere")
        return Path(__file__)

    monkeypatch.setattr(project, "pack", pack)
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").touch()
    cases = {
        "mine": "No such",
        "other": "No such",
        "file/x": "Not a directory",
        f"{300 * 'x'}/x": "long",
    }
    for folder, why in cases.items():
        done = run("new", str(tmp_path / folder))
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"error: DIR: {tmp_path}/{folder} can't be written (")
        assert why in done.err
    # Empty folders are refused the next time, too.
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "mine", "README.md"}


def test_a_new_project_has_its_own_pipeline_and_what_sets_it_up(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "pack", lambda name, output: Path(__file__))
    made = tmp_path / "mine"
    assert run("new", str(made)).code == 0
    with pytest.raises(UsageError, match=r"my-project-dev.* is the example's placeholder"):
        bootstrap.load("pipeline", made)
    for name in ("preview", "deploy", "deploy-stack"):
        path = made / ".github" / "workflows" / f"{name}.yml"
        assert path.is_file()
        assert not path.is_symlink()
    assert (made / ".github" / "actions" / "prepare" / "action.yml").is_file()


def test_of_a_new_project_that_is_interrupted_nothing_is_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(source: Path, target: Path, **options: Any) -> None:
        (target / "stacks").mkdir(parents=True, exist_ok=True)
        (target / "Pulumi.yaml").touch()
        raise Interrupted(signal.SIGINT)

    made = tmp_path / "made"
    (made / "stacks").mkdir(parents=True)
    (made / "Pulumi.yaml").touch()
    (tmp_path / "mine" / "stacks").mkdir(parents=True)
    monkeypatch.setattr(shutil, "copytree", copy)
    for folder in ("mine", "other"):
        with pytest.raises(Interrupted):
            new._copy(made, tmp_path / folder)
    # What was there stays.
    assert {path.name for path in tmp_path.rglob("*")} == {"made", "mine", "stacks", "Pulumi.yaml"}
    assert list(tmp_path.rglob("Pulumi.yaml")) == [made / "Pulumi.yaml"]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project, with the template's requirements, and a Pulumi that installs nothing."""
    folder = tmp_path / "mine"
    shutil.copytree(REPOSITORY / "infra" / "tpu_infra" / "template", folder)
    shutil.copy(folder / "requirements.txt", folder / "components")
    for lock in (folder / "requirements.txt", folder / "components" / "requirements.txt"):
        lock.write_text("./dist/a.whl --hash=sha256:00\n" + lock.read_text())
    engine = tmp_path / "bin" / "pulumi"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\necho "$@" > called\ntest ! -e broken\n')
    engine.chmod(0o755)
    monkeypatch.setattr(toolchain, "clone", lambda: None)
    monkeypatch.setenv("PATH", str(engine.parent), prepend=os.pathsep)
    monkeypatch.chdir(folder)
    return folder


def pinned(lock: Path) -> list[str]:
    """The packages of a lock; hashes follow each."""
    return re.findall(
        r"^([\w.-]+==[\w.]+) .*\\\n    --hash=sha256:", lock.read_text(), re.MULTILINE
    )


def node(folder: Path) -> None:
    """Make the project's stack dev one with a TPU Node."""
    text = (REPOSITORY / "tpustack" / "demo-local-node.yaml").read_text(encoding="utf-8")
    (folder / "stacks" / "Pulumi.dev.yaml").write_text(text, encoding="utf-8")


def test_a_new_project_has_the_newest_provider_and_one_command_installs_the_one_of_tpu_nodes(
    run: Run, mine: Path
) -> None:
    lock = mine / "requirements.txt"
    newest = lock.read_text()
    assert "pulumi-gcp==10.2.0" in pinned(lock)
    node(mine)
    needs = (
        "which pulumi-gcp 8 is the last to have, and the project has pulumi-gcp 10.2.0. "
        "Use vm, or install the one it needs: `tpustack provider 8`."
    )
    assert needs in run("check", "--stack", "dev").err
    done = run("provider", "8")
    assert (done.code, done.out) == (
        0,
        "requirements.txt pins pulumi-gcp 8.34.0; `pulumi install`:\n",
    )
    assert (mine / "called").read_text() == "install\n"
    assert "pulumi-gcp" not in run("check", "--stack", "dev").err
    for file in (lock, mine / "components" / "requirements.txt"):
        text, packages = file.read_text(), pinned(file)
        assert text.startswith("./dist/a.whl ")
        assert {"parver==1.0.1.post0", "pulumi-gcp==8.34.0"} <= set(packages)
        assert "pulumi-gcp==10.2.0" not in packages
    assert run("provider", "10").code == 0
    assert lock.read_text() == newest


def test_what_pins_the_provider_of_tpu_nodes_is_what_the_tests_run_with(mine: Path) -> None:
    """And the other packages of a new project are those of a deployment."""
    deploying = {*pinned(REPOSITORY / "requirements-deploy.txt")}
    nodes = {*pinned(REPOSITORY / "infra" / "tpu_infra" / "locks" / "pulumi-gcp-8.txt")}
    newest = {*pinned(mine / "requirements.txt")}
    assert nodes <= deploying
    assert newest - deploying == {"pulumi-gcp==10.2.0"}
    assert deploying - newest == nodes
    assert "pulumi-gcp==10.2.0" in pinned(REPOSITORY / "requirements-next.txt")


def test_where_the_installation_of_a_provider_fails_the_command_says_so(
    run: Run, mine: Path
) -> None:
    (mine / "broken").touch()
    done = run("provider", "8")
    assert (done.code, done.err) == (
        1,
        f"error: `pulumi install` failed in {mine}. Mend that, and run it again\n",
    )


def test_a_clone_keeps_its_provider(run: Run) -> None:
    done = run("provider", "10")
    assert done.code == 2
    assert f"error: {REPOSITORY} is not a project of `tpustack new`" in done.err


def test_without_a_clone_the_engine_is_the_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "clone", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(TpustackError, match=r"pulumi is not on PATH\. Install the Pulumi CLI"):
        toolchain.find()
    cached = tmp_path / "tpu-stack" / f"pulumi-{version('pulumi')}" / "bin"
    cached.mkdir(parents=True)
    (cached / "pulumi").touch(mode=0o755)
    assert toolchain.engine(toolchain.find())["PATH"] == f"{tmp_path}:{cached}"
    (tmp_path / "pulumi").touch(mode=0o755)
    # PATH stays, since its order may matter. The user's own home has the provider, or gets it.
    assert toolchain.engine(toolchain.find()) == {"PULUMI_SKIP_UPDATE_CHECK": "true"}


def test_a_provider_that_the_engine_cannot_install_ends_the_demo_with_one_message(
    tmp_path: Path,
) -> None:
    (tmp_path / "pulumi").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (tmp_path / "pulumi").chmod(0o755)
    said = r"`pulumi plugin install resource gcp [\d.]+` failed; the reason is above"
    with pytest.raises(TpustackError, match=said):
        toolchain.fetch_provider(toolchain.Toolchain(tmp_path, None, ""))


def test_where_uvx_took_a_python_without_tensorflow_the_demo_starts_again_with_an_older_one(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, tpustack.demo; from tpustack.__main__ import main\n"
        "sys.version_info = (3, 14, 0); sys.argv = ['tpustack', 'demo']; main()"
    )
    uv = tmp_path / "uv"
    uv.write_text(
        f'#!/bin/sh\nexport UV="$0"\n[ -z "$UV_PYTHON" ] || exec echo "$UV_PYTHON" "$@"\n'
        f'{sys.executable} -c "{code}"\nexit $?\n',
        encoding="utf-8",
    )
    uv.chmod(0o755)
    command = [str(uv), "tool", "uvx", "--offline", "tpustack", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == "starting again with Python >=3.10,<3.13, for TensorFlow\n"
    assert done.stdout == ">=3.10,<3.13 tool uvx --offline tpustack demo\n"


def test_the_demo_leaves_a_project_of_the_users_own_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Pulumi.yaml").write_text("stackConfigDir: stacks\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = run("demo")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {tmp_path} is a project of your own, which the demo would")
    assert [path.name for path in tmp_path.iterdir()] == ["Pulumi.yaml"]


def test_a_project_without_the_pipelines_settings_says_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Copy that folder from a new project of"):
        bootstrap.load("pipeline", tmp_path)


def test_missing_packages_are_named_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("localcloud", "localcloud.cli", "tensorflow", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    cure = r"In a clone of the project, `make setup` installs everything"
    with pytest.raises(TpustackError, match=rf"environment: localcloud, tensorflow\. {cure}"):
        errors.require("localcloud.cli", "click", "tensorflow")


@pytest.mark.parametrize("command", ["local", "demo"])
def test_a_command_without_its_packages_ends_with_that_message(
    command: str, installed: Path, checkout: Path
) -> None:
    code = (
        "import sys; sys.modules.update({'localcloud': None, 'localcloud.cli': None})\n"
        f"from tpustack.__main__ import main; sys.argv = ['tpustack', {command!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"error: not installed in this environment: localcloud\. .* `make setup` .*\n", done.stderr
    )
