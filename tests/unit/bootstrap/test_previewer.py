"""Whether the previewer can change anything, by the roles that bootstrap/ gives it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client
from tpu_infra.deployer import READ, _catalog, permissions_of
from tpu_infra.settings.parse import parse

# What reads and changes nothing, by the last word of a permission.
READS = re.compile(r"(get|getIamPolicy|list)")
# It lets a caller pay for its own calls.
PAYS = "serviceusage.services.use"
MEMBER = "serviceAccount:previewer@tpu-stack-local.iam.gserviceaccount.com"
PROJECT = "projects/tpu-stack-local"
COMPUTE = f"compute.googleapis.com/compute/v1/{PROJECT}"
TPU = f"tpu.googleapis.com/v2/{PROJECT}/locations/us-central1-b"
STORAGE = "storage.googleapis.com/storage/v1/b"
IAM = f"iam.googleapis.com/v1/{PROJECT}"
STACK = {"gcp:project": "tpu-stack-local", "tpu-stack:zone": "us-central1-b"}
CALLS: list[tuple[str, str, dict[str, Any], dict[str, str]]] = [
    ("POST", f"{COMPUTE}/global/networks", {"name": "n"}, {}),
    ("POST", f"{COMPUTE}/zones/us-central1-b/instances", {"name": "i"}, {}),
    ("DELETE", f"{COMPUTE}/zones/us-central1-b/instances/vm", {}, {}),
    ("POST", f"{COMPUTE}/zones/us-central1-b/instances/vm/setLabels", {}, {}),
    ("POST", f"{TPU}/nodes", {"acceleratorType": "v2-8"}, {"nodeId": "t"}),
    ("DELETE", f"{TPU}/nodes/t", {}, {}),
    ("POST", STORAGE, {"name": "another-bucket"}, {"project": "tpu-stack-local"}),
    ("DELETE", f"{STORAGE}/state", {}, {}),
    ("PATCH", f"{STORAGE}/state", {"labels": {"a": "b"}}, {}),
    ("DELETE", f"{STORAGE}/state/o/kept", {}, {}),
    ("POST", f"{IAM}/serviceAccounts", {"accountId": "another"}, {}),
    (
        "POST",
        f"cloudresourcemanager.googleapis.com/v1/{PROJECT}:setIamPolicy",
        {"policy": {"bindings": []}},
        {},
    ),
    (
        "POST",
        f"serviceusage.googleapis.com/v1beta1/{PROJECT}/services/tpu.googleapis.com:enable",
        {},
        {},
    ),
    (
        "POST",
        f"iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{MEMBER.partition(':')[2]}"
        ":generateAccessToken",
        {"scope": ["https://www.googleapis.com/auth/cloud-platform"]},
        {},
    ),
]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Client]:
    local_cloud = LocalCloud(tmp_path / "cloud", clock=VirtualClock())
    local_cloud.start()
    services = ("tpu", "compute", "iam", "iamcredentials", "cloudresourcemanager", "serviceusage")
    projects.enable_services(
        local_cloud.cloud, "tpu-stack-local", tuple(f"{name}.googleapis.com" for name in services)
    )
    yield Client(local_cloud)
    local_cloud.stop()


def test_every_call_that_changes_something_is_refused(owner: Client) -> None:
    account = MEMBER.partition(":")[2]
    owner.post(f"{IAM}/serviceAccounts", {"accountId": account.partition("@")[0]})
    url = f"cloudresourcemanager.googleapis.com/v1/{PROJECT}"
    policy = owner.post(f"{url}:getIamPolicy")
    included = permissions_of(parse(STACK, "dev")).of_project(READ)
    role = {"title": "Previewer", "includedPermissions": included}
    name = owner.post(f"{IAM}/roles", {"roleId": "previewer", "role": role})["name"]
    policy["bindings"].append({"role": name, "members": [MEMBER]})
    owner.post(f"{url}:setIamPolicy", {"policy": policy})
    for bucket in ("state", "other"):
        owner.post(STORAGE, {"name": bucket}, project="tpu-stack-local")
    reader = {"role": "roles/storage.objectViewer", "members": [MEMBER]}
    grants = owner.get(f"{STORAGE}/state/iam")
    owner.put(f"{STORAGE}/state/iam", {**grants, "bindings": [*grants["bindings"], reader]})
    previewer = owner.as_member(MEMBER)

    # It reads what a stack is made of …
    previewer.get(f"{COMPUTE}/global/networks/default")
    previewer.get(f"{STORAGE}/state")
    previewer.get(f"{STORAGE}/state/o")
    previewer.post(f"{url}:getIamPolicy")
    # … nothing else …
    previewer.get(f"{COMPUTE}/zones/us-central1-b/instances/vm/serialPort", status=403)
    previewer.get(f"{COMPUTE}/zones/us-central1-b/instances", status=403)
    previewer.get(f"{STORAGE}/other/o", status=403)
    # … and changes nothing.
    for verb, path, body, query in CALLS:
        previewer.call(verb, path, body, status=403, **query)


def test_no_permission_of_a_previewer_changes_anything() -> None:
    groups = _catalog()["groups"].values()
    granted = {name for group in groups for name in group.get(READ, ())} - {PAYS}
    assert len(granted) > 20
    assert {each for each in granted if not READS.fullmatch(each.rpartition(".")[2])} == set()
    assert not {each for each in granted if "SerialPort" in each or "actAs" in each}
