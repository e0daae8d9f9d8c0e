"""docs/gitops.md from the start: bootstrap, the first deployment, and the pipeline's identities."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests
import yaml

from tests.integration.ci.conftest import Checkout, MakeCheckout
from tpustack.cloud.local import LocalCloudCommand
from tpustack.project import root

NO_CHANGE, FAILURE, CHANGES = 0, 1, 3
SCOPES = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
PAGE = (root() / "docs" / "gitops.md").read_text(encoding="utf-8")
BOOTSTRAP, FIRST_DEPLOYMENT = re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.DOTALL | re.M)[:2]
SETTINGS = {
    "gcp:project": "tpu-stack-local",
    "tpu-stack-bootstrap:region": "us-central1",
    "tpu-stack-bootstrap:repository": "me/mine",
    "tpu-stack-bootstrap:budget": {"billingAccount": "0A1B2C-3D4E5F-607182", "dollars": 100},
}


@pytest.fixture
def clone(checkout: MakeCheckout, tmp_path: Path) -> Checkout:
    """A clone whose user has `tpustack` on PATH."""
    made = checkout("dev", small=True)
    file = made.path / "bootstrap" / "Pulumi.pipeline.yaml"
    file.write_text(yaml.safe_dump({"config": SETTINGS}), encoding="utf-8")
    command = tmp_path / "bin" / "tpustack"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tpustack "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{made.environment['PATH']}"
    return Checkout(made.path, {**made.environment, "PATH": path})


def shell(clone: Checkout, script: str) -> str:
    """Runs a script of the page; what its last command ends with counts."""
    script = script.replace("MY-PROJECT", "tpu-stack-local")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=clone.path,
        env=clone.variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_state(cloud: LocalCloudCommand) -> dict[str, int]:
    """How many resources of each kind there are; the state itself is objects."""
    resources: dict[str, int] = cloud.status()["resources"]
    return {kind: count for kind, count in resources.items() if kind != "objects"}


def test_the_page_leads_to_a_pipeline_whose_previewer_can_only_read(
    clone: Checkout, google: requests.Session, cloud: LocalCloudCommand
) -> None:
    said = shell(clone, BOOTSTRAP)
    outputs = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    made = without_state(cloud)
    # The second run finds its state in the bucket that the first one made.
    assert shell(clone, BOOTSTRAP).startswith("nothing changed\n")
    assert without_state(cloud) == made
    first = shell(clone, FIRST_DEPLOYMENT)
    assert first.splitlines() == ["dev: changes", "dev: changes", "dev: no change"]

    def as_account(name: str) -> dict[str, str]:
        url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{outputs[name]}"
        token = google.post(f"{url}:generateAccessToken", json=SCOPES).json()["accessToken"]
        backend = outputs["backend_url"]
        return {"GOOGLE_OAUTH_ACCESS_TOKEN": token, "PULUMI_BACKEND_URL": backend}

    previewer, deployer = as_account("previewer"), as_account("deployer")
    before = cloud.status()["resources"]
    clone.settings("dev", labels={"team": "vision", "buckets": "3"})
    # To read is enough for all of a preview and for the search for drift …
    previewed = clone.ci("preview", "--refresh", "--stack", "dev", **previewer)
    assert previewed.code == CHANGES, previewed.said
    assert clone.ci("drift", **previewer).code == NO_CHANGE
    # … and for nothing else.
    refused = clone.ci("deploy", "--stack", "dev", **previewer)
    assert refused.code == FAILURE, refused.said
    assert "storage.objects.create" in clone.text("dev")
    assert cloud.status()["resources"] == before
    deployed = clone.ci("deploy", "--stack", "dev", **deployer)
    assert deployed.code == CHANGES, deployed.said
