"""The components in programs of three languages, which the page has, on the real engine."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from localcloud.testing import Session
from tpustack.engine.toolchain import Toolchain
from tpustack.project import root

from .programs import FILES, Program, with_hosts

PAGE = (root() / "docs" / "own-project.md").read_text(encoding="utf-8")
PROGRAMS = {
    language: re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[-1]
    for language in FILES
}
# In the words of the same check in each language.
REFUSED = """'{name}':
      - training.job: "a b" is not a job name (at most 63 lower-case letters, digits, hyphens, \
dots, underscores). Use one like mnist-1.
    None of its resources was created or changed.
"""
Task = Callable[[Program], dict[str, str]]
Results = dict[str, dict[str, str]]
BUCKETS = "https://storage.googleapis.com/storage/v1/b"
NODES = "https://tpu.googleapis.com/v2/projects/tpu-stack-local/locations/us-central1-b/nodes"


@pytest.fixture
def plugin(tmp_path: Path, trainer: Path, quick_python: Path) -> Path:
    """The plugin of a project of `tpustack new`, in an environment that is there already."""
    made = tmp_path / "mine"
    shutil.copytree(root() / "infra" / "template" / "components", made / "components")
    (made / "dist").mkdir()
    shutil.copy(trainer, made / "dist")
    definition = made / "components" / "PulumiPlugin.yaml"
    content = yaml.safe_load(definition.read_text(encoding="utf-8"))
    content["runtime"]["options"]["virtualenv"] = str(quick_python)
    definition.write_text(yaml.safe_dump(content), encoding="utf-8")
    return made / "components"


@pytest.fixture
def tools(tools: Toolchain) -> Toolchain:
    return with_hosts(tools)


@pytest.fixture
def in_each(
    tmp_path: Path, environment: dict[str, str], quick_python: Path, plugin: Path
) -> Callable[[Task], Results]:
    """Does something with a program of each language, all at once; returns what came of it."""
    whole = {**os.environ, **environment}

    def run(task: Task) -> Results:
        def in_one(language: str) -> dict[str, str]:
            program = Program(language, PROGRAMS[language], tmp_path, whole, quick_python)
            program.add(plugin)
            program.write(PROGRAMS[language])
            return task(program)

        with ThreadPoolExecutor(len(FILES)) as several:
            return dict(zip(FILES, several.map(in_one, FILES), strict=True))

    return run


def test_programs_of_three_languages_are_checked_go_up_stay_and_go_down(
    in_each: Callable[[Task], Results], google: Session
) -> None:
    def whole_life(program: Program) -> dict[str, str]:
        right = PROGRAMS[program.language]
        wrong = ('training={"job": "a b", ', 'training: { job: "a b", ')
        program.write(re.sub(r"training[=:] *{", wrong[program.language != "python"], right))
        refused = program.run("up", "--yes", "--skip-preview").stdout
        assert REFUSED.format(name="mnist") in refused, refused
        program.write(right)
        program.pulumi("up", "--yes", "--skip-preview")
        outputs: dict[str, str] = json.loads(program.pulumi("stack", "output", "--json"))
        again = program.pulumi("up", "--yes", "--skip-preview")
        assert re.search(r"Resources:\n    \d+ unchanged\n", again), again
        program.pulumi("destroy", "--yes", "--skip-preview")
        return outputs

    outputs = in_each(whole_life)
    for language in ("yaml", "python"):
        assert outputs[language].pop("endpoint").startswith("grpc://")
    assert outputs == {
        "yaml": {"bucket": "gs://tpu-stack-local-tpu-stack-yaml-batch"},
        "typescript": {
            "bucket": "gs://tpu-stack-local-tpu-stack-typescript-mnist",
            "machine": "tpu-stack-typescript-mnist-tpu",
        },
        "python": {},
    }
    assert google.get(BUCKETS, params={"project": "tpu-stack-local"}).json().get("items", []) == []
    assert google.get(NODES).json().get("nodes", []) == []
