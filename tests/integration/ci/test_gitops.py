"""The whole way of a change: request, preview, merge, deployment, drift, repair, sweep."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatchcase

import requests

from bootstrap.components.accounts import DEPLOYER_ROLES
from localcloud.core.access import predefined_roles
from localcloud.core.cloud import DEVELOPER
from tests.integration.ci.conftest import OUTPUT, MakeCheckout
from tpustack.cloud.local import LocalCloudCommand

ZONE = "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local/zones/us-central1-b"
VM, DISKS = f"{ZONE}/instances/tpu-stack-dev-vm", f"{ZONE}/disks"
NO_CHANGE, FAILURE, CHANGES, DRIFT, POLICY = 0, 1, 3, 4, 5


def granted(permission: str) -> bool:
    patterns = (pattern for role in DEPLOYER_ROLES for pattern in predefined_roles()[role])
    return any(fnmatchcase(permission, pattern) for pattern in patterns)


def label(google: requests.Session, team: str) -> None:
    vm = google.get(VM).json()
    change = {"labels": {**vm["labels"], "team": team}, "labelFingerprint": vm["labelFingerprint"]}
    google.post(f"{VM}/setLabels", json=change).raise_for_status()


def test_a_change_goes_from_a_branch_to_the_cloud_and_what_is_left_is_swept(
    checkout: MakeCheckout, google: requests.Session, cloud: LocalCloudCommand
) -> None:
    clone = checkout("dev", "prod")
    clone.git("switch", "--quiet", "--create", "team")
    clone.settings("dev", labels={"team": "vision", "environment": "dev"})
    clone.git("commit", "--quiet", "--all", "--message=A team")
    clone.git("push", "--quiet", "origin", "team")
    preview = clone.ci("preview", "--base", "origin/main")
    assert preview.code == CHANGES, preview.said
    # One of the two stacks is touched, and only that is previewed.
    assert [each["stack"] for each in clone.result()["stacks"]] == ["dev"]
    comment = clone.text("dev")
    assert comment.startswith("<!-- tpustack ci preview dev -->\n")
    for part in ("gcp:tpu/v2Vm:V2Vm tpu", "every rule is kept", "nothing → $1.3934"):
        assert part in comment
    shutil.copytree(clone.path / OUTPUT, clone.path / "plans")

    # Production on spot machines is against a rule.
    violation = clone.ci("preview", "--stack", "prod")
    assert violation.code == POLICY, violation.said
    assert "`no-spot-in-production` (mandatory): " in clone.text("prod")

    # The request's own stack is deployed while the merged change is.
    request = clone.start("deploy", "--request", "7", "--branch", "team", "--output", "build/pr")
    clone.git("push", "--quiet", "origin", "team:main")
    deployed = clone.ci("deploy", "--stack", "dev", "--plans", "plans")
    assert deployed.code == CHANGES, deployed.said
    said, _ = request.communicate(timeout=240)
    assert request.returncode == CHANGES, said
    assert google.get(VM).json()["labels"]["team"] == "vision"
    assert google.get(VM.replace("-dev-", "-pr-7-")).ok

    label(google, "audio")
    found = clone.ci("drift", "--stack", "dev")
    assert found.code == DRIFT, found.said
    assert "gcp:compute/instance:Instance instance [labels.team]" in clone.text("dev")
    assert google.get(VM).json()["labels"]["team"] == "audio"
    # Nobody has reviewed that this is undone.
    refused = clone.ci("deploy", "--refresh", "--stack", "dev", "--plans", "plans")
    assert refused.code == FAILURE, refused.said
    assert "the reviewed plan of stack dev no longer fits" in clone.text("dev")
    assert google.get(VM).json()["labels"]["team"] == "audio"
    repaired = clone.ci("deploy", "--refresh", "--stack", "dev")
    assert repaired.code == CHANGES, repaired.said
    assert google.get(VM).json()["labels"]["team"] == "vision"

    assert clone.ci("sweep").code == NO_CHANGE
    clone.git("push", "--quiet", "origin", "--delete", "team")
    (clone.path / "stacks/Pulumi.pr-7.yaml").unlink()
    # What a run left whose state is lost.
    labels = {"managed-by": "pulumi", "tpu-stack": "pr-9", "request": "pr-9"}
    google.post(DISKS, json={"name": "lost", "sizeGb": "10", "labels": labels}).raise_for_status()
    swept = clone.ci("sweep", "--remove-orphans")
    assert swept.code == CHANGES, swept.said
    assert "Its branch `team` is gone" in clone.text("pr-7")
    assert google.get(VM.replace("-dev-", "-pr-7-")).status_code == 404
    assert google.get(f"{DISKS}/lost").status_code == 404
    assert google.get(VM).ok
    # The deployer's roles hold all that this took.
    asked = json.loads(cloud.run("permissions", "--json"))[DEVELOPER]
    assert {each for each in asked if not granted(each)} == set()
