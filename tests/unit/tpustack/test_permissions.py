"""`tpustack permissions`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from .conftest import Run

pytestmark = pytest.mark.usefixtures("project")


def test_the_role_file_has_what_the_stack_takes_and_says_what_the_budget_takes(
    project: Path, run: Run
) -> None:
    path = project / "stacks" / "Pulumi.staging.yaml"
    path.write_text(f"{path.read_text()}  tpu-stack:budget: {{amount: 5}}\n", encoding="utf-8")
    done = run("permissions", "--stack", "staging")
    assert done.out.startswith("# And on the billing account roles/billing.costsManager (")
    role = yaml.safe_load(done.out)
    assert role["title"] == "Deployer of tpu-stack staging"
    assert "tpu.nodes.create" in role["includedPermissions"]
    # The bucket stays: what the training writes there is out of the deployer's reach.
    assert "storage.objects.delete" not in role["includedPermissions"]
    said, condition = done.out.splitlines()[-2:]
    assert said == "# And on the project roles/storage.objectUser, under the condition"
    bucket = "projects/_/buckets/our-project-staging-tpu-stack-staging/objects"
    begins = [f"{bucket}/{each}" for each in ("agent/declaration.json", "data/", "wheels/")]
    assert re.findall(r"resource\.name\.startsWith\('([^']*)'\)", condition) == begins
    look = yaml.safe_load(run("permissions", "--stack", "staging", "--look").out)
    assert "tpu.nodes.create" not in look["includedPermissions"]
    assert "roles/storage.objectUser" not in run("permissions", "--stack", "staging", "--look").out
    assert "roles/storage.objectUser" not in run("permissions", "--stack", "local").out
    assert set(look["includedPermissions"]) < set(role["includedPermissions"])


def test_a_stack_without_a_file_is_refused(run: Run) -> None:
    done = run("permissions", "--stack", "nosuch")
    assert done.code == 2
    assert "Traceback" not in done.err
