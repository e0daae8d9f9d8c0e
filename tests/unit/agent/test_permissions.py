"""What a stack grants its machines is enough to recreate a TPU, and no more than that."""

from __future__ import annotations

import json

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.services.tpu import nodes
from localcloud.testing import Client, session
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.recovery import Recovery, World
from tpu_core.google import Json, parse
from tpu_core.paths import DECLARATION
from tpu_core.tpu import Place
from tpu_infra.deployer import TPU_PERMISSIONS, permissions_of_role
from tpu_infra.grants import PROJECT_ROLES, bucket_roles
from tpu_infra.settings.parse import parse as settings_of

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

RECOVERED = settings_of(
    {
        "gcp:project": PROJECT,
        "tpu-stack:zone": ZONE,
        "tpu-stack:tpu": {"acceleratorType": "v2-8"},
        "tpu-stack:recovery": {"enabled": True},
    },
    "test",
)


@pytest.fixture
def account(google: Client, local_cloud: LocalCloud) -> str:
    """The machines' account with what identity.py and limits.py grant it; the role's name."""
    projects.enable_services(local_cloud.cloud, PROJECT, ("iam.googleapis.com",))
    google.post(f"{IAM}/serviceAccounts", {"accountId": "machines"})
    role = {"title": "agent", "includedPermissions": permissions_of_role(RECOVERED)}
    name = google.post(f"{IAM}/roles", {"roleId": "agent", "role": role})["name"]
    policy = google.post(f"{MANAGER}:getIamPolicy")
    bindings = [{"role": one, "members": [MEMBER]} for one in (name, *PROJECT_ROLES)]
    policy["bindings"] += bindings
    google.post(f"{MANAGER}:setIamPolicy", {"policy": policy})
    own = [{"role": "roles/iam.serviceAccountUser", "members": [MEMBER]}]
    url = f"{IAM}/serviceAccounts/{EMAIL}:setIamPolicy"
    google.post(url, {"policy": {"bindings": own}})
    policy = google.get(f"{BUCKET}/iam")
    policy["bindings"] += granted()
    policy["version"] = 3
    google.call("PUT", f"{BUCKET}/iam", policy)
    return str(name)


def granted() -> list[Json]:
    """What a stack with recovery grants on its bucket."""
    return [
        {
            "role": role,
            "members": [MEMBER],
            **({"condition": vars(condition)} if condition else {}),
        }
        for role, condition in bucket_roles("a-bucket", DECLARATION, ())
    ]


def recovery_of(local_cloud: LocalCloud, clock: VirtualClock, lines: list[str]) -> Recovery:
    own = session(local_cloud, MEMBER)

    def call(method: str, url: str, body: str | None) -> tuple[int, dict[str, object]]:
        answer = own.request(method, url, data=body)
        return answer.status_code, parse(answer.content)

    world = World(clock.now, lines.append, lambda host, port: None, lambda: 0.5)
    return Recovery(Place(PROJECT, ZONE, "a-bucket"), FakeClient(call), world)


def lose(google: Client, local_cloud: LocalCloud) -> None:
    """Declare a TPU, make it and take it away."""
    url = "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    query = {"uploadType": "media", "name": "agent/declaration.json"}
    text = json.dumps({"tpus": {"t": BODY}})
    google.session.post(url, params=query, data=text, timeout=30).raise_for_status()
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    nodes.preempt(local_cloud.cloud, f"{PARENT}/nodes/t")


def test_the_machines_account_recreates_the_tpu_as_itself(
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
    role = {"includedPermissions": list(TPU_PERMISSIONS)}
    google.patch(f"iam.googleapis.com/v1/{account}", role, updateMask="includedPermissions")
    lines: list[str] = []
    recovery = recovery_of(local_cloud, clock, lines)
    lose(google, local_cloud)
    for _ in range(10):
        recovery.look(["t"], {"preemption": 1, "failure": 1})
        clock.advance(10.0)
    assert "t is not created yet: permission (" in lines[-1]
    assert "tpu.nodes.create" in lines[-1]
    assert lines[-1].endswith("run `pulumi up`, which grants the agent's roles")


def test_the_machine_reads_the_declaration_and_can_do_all_but_change_it(
    google: Client, local_cloud: LocalCloud, account: str
) -> None:
    declaration = "a-bucket/o/agent%2Fdeclaration.json"
    objects = "storage.googleapis.com/storage/v1/b"
    upload = "storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    lose(google, local_cloud)
    machine = google.as_member(MEMBER)
    content = machine.get(f"{objects}/{declaration}", alt="media")
    assert content == {"tpus": {"t": BODY}}

    def writes(name: str, status: int) -> None:
        """In each way in which a name comes along."""
        machine.call("POST", upload, {}, status=status, uploadType="media", name=name)
        machine.call("POST", upload, {"name": name}, status=status, uploadType="resumable")
        related = (
            f'--x\r\nContent-Type: application/json\r\n\r\n{{"name": "{name}"}}\r\n'
            "--x\r\nContent-Type: text/plain\r\n\r\na\r\n--x--"
        )
        answer = machine.session.post(
            f"https://{upload}",
            params={"uploadType": "multipart"},
            data=related,
            headers={"Content-Type": "multipart/related; boundary=x"},
            timeout=30,
        )
        assert answer.status_code == status, answer.text
        xml = f"https://storage.googleapis.com/a-bucket/{name}"
        assert machine.session.put(xml, data="a", timeout=30).status_code == status
        target = name.replace("/", "%2F")
        source = f"{objects}/a-bucket/o/other"
        machine.call("POST", f"{source}/copyTo/b/a-bucket/o/{target}", {}, status=status)
        machine.call("POST", f"{source}/rewriteTo/b/a-bucket/o/{target}", {}, status=status)
        composed = {"sourceObjects": [{"name": "other"}]}
        machine.call("POST", f"{objects}/a-bucket/o/{target}/compose", composed, status=status)
        machine.call(
            "PATCH", f"{objects}/a-bucket/o/{target}", {"metadata": {"a": "b"}}, status=status
        )

    machine.call("POST", upload, {}, status=200, uploadType="media", name="other")
    writes("agent/declaration.json", 403)
    writes("agent/state.json", 200)
    machine.call("DELETE", f"{objects}/{declaration}", status=403)
    move = "a-bucket/o/{}/moveTo/o/{}".format
    there, elsewhere = "agent%2Fdeclaration.json", "agent%2Fdeclared.json"
    machine.call("POST", f"{objects}/{move(there, elsewhere)}", {}, status=403)
    machine.call("POST", f"{objects}/{move('other', there)}", {}, status=403)
    machine.call("POST", f"{objects}/{move('other', elsewhere)}", {}, status=200)
    machine.call("DELETE", f"{objects}/a-bucket/o/agent%2Fstate.json", status=204)
    listed = machine.get(f"{objects}/a-bucket/o", prefix="agent/")["items"]
    assert [item["name"] for item in listed] == ["agent/declaration.json", "agent/declared.json"]
    assert machine.get(f"{objects}/{declaration}", alt="media") == content
