"""The whole way of a change: request, preview, merge, deployment, drift, repair, sweep."""

from __future__ import annotations

import json
import shutil

import pytest
import requests

from localcloud.core.cloud import DEVELOPER
from tests.integration.ci.conftest import OUTPUT, REQUESTS, MakeCheckout
from tpu_infra.deployer import permissions_of, sweeper
from tpu_infra.names import MARK, mark_of
from tpu_infra.settings.parse import load_stack_file
from tpustack.local import LocalCloudCommand
from tpustack.project import BACKEND

ZONE = "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local/zones/us-central1-a"
TPUS = "https://tpu.googleapis.com/v2/projects/tpu-stack-local/locations"
TPU = f"{TPUS}/{ZONE.rpartition('/')[2]}/nodes/tpu-stack-dev-tpu"
LIMITS = {"timeToLiveHours": 4, "idleMinutes": 30}
VM, DISKS = f"{ZONE}/instances/tpu-stack-dev-vm", f"{ZONE}/disks"
OF_REQUEST = VM.replace("tpu-stack-local", REQUESTS).replace("-dev-", "-pr-7-")
THEIR_DISKS = DISKS.replace("tpu-stack-local", REQUESTS)
NO_CHANGE, FAILURE, CHANGES, DRIFT, POLICY = 0, 1, 3, 4, 5


def label(google: requests.Session, team: str) -> None:
    vm = google.get(VM).json()
    change = {"labels": {**vm["labels"], "team": team}, "labelFingerprint": vm["labelFingerprint"]}
    google.post(f"{VM}/setLabels", json=change).raise_for_status()


def test_a_change_goes_from_a_branch_to_the_cloud_and_what_is_left_is_swept(
    checkout: MakeCheckout,
    google: requests.Session,
    cloud: LocalCloudCommand,
    monkeypatch: pytest.MonkeyPatch,
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
    for part in ("dynamic/tpu:QueuedResource tpu", "no violations", "nothing → $1.0231"):
        assert part in comment
    shutil.copytree(clone.path / OUTPUT, clone.path / "plans")

    # Production on spot machines is against a rule, also where the change takes the rule away.
    rules = clone.path / "policy" / "tpu_policy" / "rules.py"
    rules.write_text("RULES = ()\n", encoding="utf-8")
    violation = clone.ci("preview", "--stack", "prod", "--policies-of", "origin/main")
    assert "Policies are those of `origin/main`" in clone.text("prod")
    clone.git("checkout", "--quiet", "policy")
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
    assert google.get(OF_REQUEST).ok

    # What changes in place is in the plan and in the update, also of a TPU out of the queue.
    tpu = google.get(TPU).json()
    clone.settings("dev", labels={"team": "sound", "environment": "dev"}, limits=LIMITS)
    clone.git("commit", "--quiet", "--all", "--message=In place")
    assert clone.ci("preview", "--stack", "dev").code == CHANGES
    assert "**Replaced**" not in clone.text("dev")
    shutil.copytree(clone.path / OUTPUT, clone.path / "more")
    changed = clone.ci("deploy", "--stack", "dev", "--plans", "more")
    assert changed.code == CHANGES, changed.said
    assert google.get(TPU).json()["createTime"] == tpu["createTime"]
    assert google.get(TPU).json()["labels"]["team"] == "sound"

    label(google, "audio")
    google.post(f"{VM}/stop").raise_for_status()
    found = clone.ci("drift", "--stack", "dev")
    assert found.code == DRIFT, found.said
    seen = "gcp:compute/instance:Instance instance [desiredStatus, labels.team]"
    assert seen in clone.text("dev")
    assert google.get(VM).json()["labels"]["team"] == "audio"
    # No one has reviewed that this is undone.
    refused = clone.ci("deploy", "--refresh", "--stack", "dev", "--plans", "plans")
    assert refused.code == FAILURE, refused.said
    assert "the reviewed plan of stack dev no longer fits" in clone.text("dev")
    assert google.get(VM).json()["labels"]["team"] == "audio"
    repaired = clone.ci("deploy", "--refresh", "--stack", "dev")
    assert repaired.code == CHANGES, repaired.said
    assert google.get(VM).json()["status"] == "RUNNING"
    assert google.get(VM).json()["labels"]["team"] == "sound"

    assert clone.ci("sweep").code == NO_CHANGE
    clone.git("push", "--quiet", "origin", "--delete", "team")
    (clone.path / "stacks/Pulumi.pr-7.yaml").unlink()
    # What a run left whose state is lost.
    monkeypatch.setenv(BACKEND, clone.environment[BACKEND])
    labels = {"managed-by": "pulumi", "tpu-stack": "pr-9", "request": "pr-9"}
    labels |= {MARK: mark_of("pr-9")}
    google.post(
        THEIR_DISKS, json={"name": "lost", "sizeGb": "10", "labels": labels}
    ).raise_for_status()
    swept = clone.ci("sweep", "--remove-orphans")
    assert swept.code == CHANGES, swept.said
    assert "Its branch `team` was deleted" in clone.text("pr-7")
    assert google.get(OF_REQUEST).status_code == 404
    # A run may still be at work on it.
    assert "They stay until all are two hours old" in clone.text("pr-9")
    assert google.get(f"{THEIR_DISKS}/lost").ok
    assert google.get(VM).ok
    # The lists of deployer and sweeper hold all that this took, but for what the test itself did.
    asked = json.loads(cloud.run("permissions", "--json"))[DEVELOPER]
    listed = permissions_of(load_stack_file(clone.path / "stacks/Pulumi.dev.yaml")).of_project()
    # Look-ups that only make a message better may be refused. The test itself made a disk with
    # labels.
    beside = {each for each in asked if each not in {*listed, *sweeper()}}
    changing = {each for each in beside if not each.endswith((".get", ".list"))}
    assert changing == {"compute.disks.setLabels"}
