"""An environment for deploying, without TensorFlow and what else training needs, is enough."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.integration.ci.conftest import DEFINITIONS, Checkout, MakeCheckout
from tests.integration.installed import Installed
from tpustack.project import root

pytestmark = pytest.mark.xdist_group("installed")

CHANGES = 3
LOG = root() / "tests" / "unit" / "tpustack" / "logs" / "good_training.log"


@pytest.fixture
def clone(checkout: MakeCheckout, deploying: Installed) -> Checkout:
    made = checkout("dev")
    for file in DEFINITIONS:
        path = made.path / file
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
        definition["runtime"]["options"]["virtualenv"] = str(deploying.environment)
        path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    return made


def test_check_cost_doctor_preview_and_follow_work_where_only_deploying_is_installed(
    clone: Checkout, deploying: Installed
) -> None:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [deploying.python, "-m", "tpustack", *arguments],
            cwd=clone.path,
            env=clone.variables,
            capture_output=True,
            text=True,
            check=False,
        )

    for command in (("check",), ("cost", "--stack", "dev"), ("doctor", LOG)):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    preview = run("ci", "preview", "--stack", "dev")
    assert preview.returncode == CHANGES, preview.stdout + preview.stderr
    assert "no violations" in clone.text("dev")
    follow = run("follow", "--stack", "dev")
    assert follow.returncode == 2
    assert "stack dev: the backend has no such stack" in follow.stderr
