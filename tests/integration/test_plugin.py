"""The components in programs of three languages, which the page has, on the real engine."""

from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from localcloud.testing import Session
from tpustack.engine import toolchain
from tpustack.engine.toolchain import Toolchain
from tpustack.local import LocalCloudCommand
from tpustack.project import root

from .programs import BROKEN, FILES, MissingError, Program, had, with_hosts

PAGE = (root() / "docs" / "own-project.md").read_text(encoding="utf-8")
PROGRAMS = {
    language: re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[-1]
    for language in FILES
}
# In the words of the same check in each language.
REFUSED = """:
      - training.job: "a b" is not a job name (at most 63 lower-case letters, digits, hyphens, \
dots, underscores). Use one like mnist-1.
    None of its resources was created or changed.
"""
OUTPUTS = {
    "yaml": {"bucket": "gs://tpu-stack-local-tpu-stack-yaml-batch"},
    "typescript": {
        "bucket": "gs://tpu-stack-local-tpu-stack-typescript-data",
        "machine": "tpu-stack-typescript-mnist-tpu",
    },
    "python": {},
}
COMPUTE = "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local"
TPU = "https://tpu.googleapis.com/v2/projects/tpu-stack-local"
LISTS = {
    "https://storage.googleapis.com/storage/v1/b?project=tpu-stack-local": "items",
    "https://iam.googleapis.com/v1/projects/tpu-stack-local/serviceAccounts": "accounts",
    f"{COMPUTE}/global/networks": "items",
    f"{COMPUTE}/zones/us-central1-b/instances": "items",
    f"{TPU}/locations/us-central1-b/nodes": "nodes",
    f"{TPU}/locations/us-central1-b/queuedResources": "queuedResources",
}


def there(google: Session) -> set[str]:
    """The names of what the cloud has of stacks."""
    found = [each for url, key in LISTS.items() for each in google.get(url).json().get(key, [])]
    names = {each["name"].rpartition("/")[2] for each in found}
    # A project has a network and an account from the first.
    return {name for name in names if name.startswith("tpu-stack-")}


@pytest.fixture
def plugin(tmp_path: Path, trainer: Path, quick_python: Path) -> Path:
    """The plugin of a project of `tpustack new`, in an environment that is there already."""
    made = tmp_path / "mine"
    shutil.copytree(root() / "infra" / "tpu_infra" / "template" / "components", made / "components")
    (made / "dist").mkdir()
    shutil.copy(trainer, made / "dist")
    definition = made / "components" / "PulumiPlugin.yaml"
    content = yaml.safe_load(definition.read_text(encoding="utf-8"))
    content["runtime"]["options"]["virtualenv"] = str(quick_python)
    definition.write_text(yaml.safe_dump(content), encoding="utf-8")
    return made / "components"


@pytest.fixture
def hosts(tools: Toolchain) -> tuple[Toolchain, dict[str, str]]:
    return with_hosts(tools)


@pytest.fixture
def environment(
    tmp_path: Path, hosts: tuple[Toolchain, dict[str, str]], cloud: LocalCloudCommand
) -> dict[str, str]:
    return toolchain.environment(hosts[0], tmp_path / "state") | cloud.environment()


def test_a_broken_lock_is_an_error_and_no_network_a_reason_to_skip() -> None:
    def npm(code: str) -> str:
        return had("sh", "-c", f"echo npm error code {code} >&2; exit 1")

    with pytest.raises(MissingError):
        npm("EAI_AGAIN")
    for code in BROKEN:
        with pytest.raises(AssertionError, match=code):
            npm(code)


def test_programs_of_three_languages_are_checked_go_up_stay_and_go_down(
    tmp_path: Path,
    environment: dict[str, str],
    quick_python: Path,
    plugin: Path,
    hosts: tuple[Toolchain, dict[str, str]],
    google: Session,
) -> None:
    # The program in Python has a network before its component could enable the API.
    services = "https://serviceusage.googleapis.com/v1/projects/tpu-stack-local/services"
    google.post(f"{services}/compute.googleapis.com:enable", json={}).raise_for_status()
    missing = hosts[1]
    languages = FILES.keys() - missing

    def refused(language: str) -> tuple[Program, str]:
        whole = {**os.environ, **environment}
        program = Program(language, PROGRAMS[language], tmp_path, whole, quick_python)
        program.add(plugin)
        wrong = ('training={"job": "a b", ', 'training: { job: "a b", ')[language != "python"]
        program.write(re.sub(r"training[=:] *{", wrong, PROGRAMS[language]))
        return program, program.run("up", "--yes", "--skip-preview").stdout

    def life(program: Program) -> dict[str, str]:
        program.write(PROGRAMS[program.language])
        program.pulumi("up", "--yes")
        assert f"tpu-stack-{program.language}-mnist-sa" in {
            name.partition("@")[0] for name in there(google)
        }
        outputs: dict[str, str] = json.loads(program.pulumi("stack", "output", "--json"))
        # Of two components in the most compact language.
        if program.language == "yaml":
            assert "tpu-stack-yaml-mnist-tpu" in there(google)
            state = program.pulumi("stack", "export")
            assert "tpu-stack:tpu:QueuedNode" in state
            assert "__provider" not in state
            again = program.pulumi("up", "--yes", "--refresh")
            assert re.search(r"Resources:\n    \d+ unchanged\n", again), again
        program.pulumi("destroy", "--yes", "--skip-preview")
        return outputs

    # At once, since most of the time they wait for the cloud.
    with ThreadPoolExecutor(len(FILES)) as several:
        programs = []
        for program, said in several.map(refused, sorted(languages)):
            assert REFUSED in said, said
            programs.append(program)
        # What no refused component is part of.
        assert all(name.endswith("-data") for name in there(google))
        outputs = dict(zip(sorted(languages), several.map(life, programs), strict=True))
    for language in languages - {"typescript"}:
        assert outputs[language].pop("endpoint").startswith("grpc://")
    assert outputs == {language: OUTPUTS[language] for language in languages}
    assert not there(google)
    if missing:
        pytest.skip(f"the other languages passed, but not to be had here are {missing}")
