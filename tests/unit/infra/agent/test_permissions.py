"""What a stack grants its machines is enough to make a TPU anew, and not more than that takes."""

from __future__ import annotations

import json

import pytest

from infra.components.identity import _PROJECT_ROLES
from infra.components.limits import _CREATE, _PERMISSIONS
from infra.startup.agent.google import Place, parse
from infra.startup.agent.recovery import Recovery, World
from localcloud.app import LocalCloud
from localcloud.core import enablement
from localcloud.core.clock import VirtualClock
from localcloud.services.tpu import nodes
from localcloud.testing import Client, session

from .conftest import PARENT, PROJECT, TPU, ZONE, state

EMAIL = f"machines@{PROJECT}.iam.gserviceaccount.com"
MEMBER = f"serviceAccount:{EMAIL}"
IAM = f"iam.googleapis.com/v1/projects/{PROJECT}"
MANAGER = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
BUCKET = "storage.googleapis.com/storage/v1/b/a-bucket"
BODY = {
    "acceleratorType": "v2-8",
    "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt",
    "serviceAccount": {"email": EMAIL},
    "labels": {"tpu-stack-mark": "abc"},
}


@pytest.fixture
def account(google: Client, local_cloud: LocalCloud) -> str:
    """The machines' account with what identity.py and limits.py grant it; the role's name."""
    enablement.enable(local_cloud.cloud, PROJECT, ("iam.googleapis.com",))
    google.post(f"{IAM}/serviceAccounts", {"accountId": "machines"})
    role = {"title": "agent", "includedPermissions": [*_CREATE, *_PERMISSIONS]}
    name = google.post(f"{IAM}/roles", {"roleId": "agent", "role": role})["name"]
    policy = google.post(f"{MANAGER}:getIamPolicy")
    bindings = [{"role": one, "members": [MEMBER]} for one in (name, *_PROJECT_ROLES)]
    policy["bindings"] += bindings
    google.post(f"{MANAGER}:setIamPolicy", {"policy": policy})
    own = [{"role": "roles/iam.serviceAccountUser", "members": [MEMBER]}]
    url = f"{IAM}/serviceAccounts/{EMAIL}:setIamPolicy"
    google.post(url, {"policy": {"bindings": own}})
    policy = google.get(f"{BUCKET}/iam")
    policy["bindings"] += [{"role": "roles/storage.objectUser", "members": [MEMBER]}]
    google.call("PUT", f"{BUCKET}/iam", policy)
    return str(name)


def recovery_of(local_cloud: LocalCloud, clock: VirtualClock, lines: list[str]) -> Recovery:
    own = session(local_cloud, MEMBER)

    def call(method: str, url: str, body: str | None) -> tuple[int, dict[str, object]]:
        answer = own.request(method, url, data=body)
        return answer.status_code, parse(answer.content)

    world = World(clock.now, lines.append, lambda host, port: None, lambda: 0.5)
    return Recovery(Place(PROJECT, ZONE, "a-bucket"), call, world)


def lose(google: Client, local_cloud: LocalCloud) -> None:
    """Declare a TPU, make it and take it away."""
    url = "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    query = {"uploadType": "media", "name": "agent/declaration.json"}
    text = json.dumps({"tpus": {"t": BODY}})
    google.session.post(url, params=query, data=text, timeout=30).raise_for_status()
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    nodes.preempt(local_cloud.cloud, f"{PARENT}/nodes/t")


def test_the_machines_account_makes_the_tpu_anew_as_itself(
    google: Client, local_cloud: LocalCloud, clock: VirtualClock, account: str
) -> None:
    lines: list[str] = []
    recovery = recovery_of(local_cloud, clock, lines)
    lose(google, local_cloud)
    for _ in range(10):
        recovery.look(["t"], {"preemption": 1, "failure": 1})
        clock.advance(10.0)
    assert state(google) == "READY", lines
    assert google.get(f"{TPU}/nodes/t")["serviceAccount"]["email"] == EMAIL


def test_a_role_that_lacks_it_is_told_with_what_helps(
    google: Client, local_cloud: LocalCloud, clock: VirtualClock, account: str
) -> None:
    role = {"includedPermissions": list(_PERMISSIONS)}
    google.patch(f"iam.googleapis.com/v1/{account}", role, updateMask="includedPermissions")
    lines: list[str] = []
    recovery = recovery_of(local_cloud, clock, lines)
    lose(google, local_cloud)
    for _ in range(10):
        recovery.look(["t"], {"preemption": 1, "failure": 1})
        clock.advance(10.0)
    assert "t is not made yet: permission (" in lines[-1]
    assert "tpu.nodes.create" in lines[-1]
    assert lines[-1].endswith("run `pulumi up`, which grants what the agent needs")
