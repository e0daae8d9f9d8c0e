"""Bootstrap on the real engine, and the pipeline with its identities and its state bucket."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import requests
import yaml

from tests.integration.ci.conftest import MakeCheckout
from tpustack.localcloud import LocalCloudCommand

CHANGES, FAILURE = 3, 1
SCOPES = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}


@pytest.fixture
def settings() -> dict[str, object]:
    return {
        "gcp:project": "tpu-stack-local",
        "tpu-stack-bootstrap:region": "us-central1",
        "tpu-stack-bootstrap:repository": "me/mine",
        "tpu-stack-bootstrap:budget": {"billingAccount": "0A1B2C-3D4E5F-607182", "dollars": 100},
    }


def test_a_pipeline_is_bootstrapped_once_and_its_previewer_can_only_read(
    checkout: MakeCheckout,
    settings: dict[str, object],
    google: requests.Session,
    cloud: LocalCloudCommand,
) -> None:
    clone = checkout("dev", small=True)
    file = clone.path / "bootstrap" / "Pulumi.pipeline.yaml"
    file.write_text(yaml.safe_dump({"config": settings}), encoding="utf-8")

    def bootstrap() -> dict[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tpustack", "bootstrap"],
            cwd=clone.path,
            env={**os.environ, **clone.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)

    made = bootstrap()
    resources = cloud.status()["resources"]
    # The second run finds its state in the bucket that the first one made.
    assert bootstrap() == made
    assert cloud.status()["resources"] == resources

    def as_account(name: str) -> dict[str, str]:
        url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{made[name]}"
        token = google.post(f"{url}:generateAccessToken", json=SCOPES).json()["accessToken"]
        backend = made["backend_url"]
        return {"GOOGLE_OAUTH_ACCESS_TOKEN": token, "PULUMI_BACKEND_URL": backend}

    previewer, deployer = as_account("previewer"), as_account("deployer")
    assert clone.ci("preview", "--stack", "dev", **previewer).code == CHANGES
    refused = clone.ci("deploy", "--stack", "dev", **previewer)
    assert refused.code == FAILURE, refused.said
    assert "storage.objects.create" in clone.text("dev")
    deployed = clone.ci("deploy", "--stack", "dev", **deployer)
    assert deployed.code == CHANGES, deployed.said
    resources = cloud.status()["resources"]
    # To read is enough for all of a preview and for the search for drift.
    clone.settings("dev", labels={"team": "vision"})
    assert clone.ci("preview", "--refresh", "--stack", "dev", **previewer).code == CHANGES
    assert clone.ci("drift", **previewer).code == 0
    assert cloud.status()["resources"] == resources
