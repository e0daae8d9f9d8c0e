"""Whether the previewer can change anything, by the roles that bootstrap/ gives it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootstrap.components.accounts import PREVIEWER_ROLES
from localcloud.app import LocalCloud
from localcloud.core import enablement
from localcloud.core.access import predefined_roles
from localcloud.core.clock import VirtualClock
from localcloud.services import all_apis
from localcloud.testing import Client

# What reads and changes nothing, by the last word of a permission.
READS = re.compile(r"(get|list|query|search|download|view|read|check|test|export)[A-Za-z]*")
MEMBER = "serviceAccount:previewer@tpu-stack-local.iam.gserviceaccount.com"
PROJECT = "projects/tpu-stack-local"
COMPUTE = f"compute.googleapis.com/compute/v1/{PROJECT}"
TPU = f"tpu.googleapis.com/v2/{PROJECT}/locations/us-central1-b"
STORAGE = "storage.googleapis.com/storage/v1/b"
IAM = f"iam.googleapis.com/v1/{PROJECT}"
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
    enablement.enable(
        local_cloud.cloud, "tpu-stack-local", tuple(f"{name}.googleapis.com" for name in services)
    )
    yield Client(local_cloud)
    local_cloud.stop()


def test_every_call_that_changes_something_is_refused(owner: Client) -> None:
    account = MEMBER.partition(":")[2]
    owner.post(f"{IAM}/serviceAccounts", {"accountId": account.partition("@")[0]})
    url = f"cloudresourcemanager.googleapis.com/v1/{PROJECT}"
    policy = owner.post(f"{url}:getIamPolicy")
    policy["bindings"] += [{"role": role, "members": [MEMBER]} for role in PREVIEWER_ROLES]
    owner.post(f"{url}:setIamPolicy", {"policy": policy})
    owner.post(STORAGE, {"name": "state"}, project="tpu-stack-local")
    reader = {"role": "roles/storage.objectViewer", "members": [MEMBER]}
    grants = owner.get(f"{STORAGE}/state/iam")
    owner.put(f"{STORAGE}/state/iam", {**grants, "bindings": [*grants["bindings"], reader]})
    previewer = owner.as_member(MEMBER)

    # It reads whatever there is …
    previewer.get(f"{COMPUTE}/global/networks")
    previewer.get(f"{TPU}/nodes")
    previewer.get(f"{STORAGE}/state")
    previewer.get(f"{STORAGE}/state/o")
    previewer.post(f"{url}:getIamPolicy")
    # … and changes nothing.
    for verb, path, body, query in CALLS:
        previewer.call(verb, path, body, status=403, **query)


def test_no_permission_of_the_previewer_changes_anything() -> None:
    known = sorted({permission for api in all_apis() for permission in api.permissions()})
    granted = [
        permission
        for permission in known
        for role in PREVIEWER_ROLES
        for pattern in predefined_roles()[role]
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), permission)
    ]
    assert len(granted) > 20
    wrong = {each for each in granted if not READS.fullmatch(each.rpartition(".")[2])}
    assert wrong == set()
