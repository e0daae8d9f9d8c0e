"""What requests' stacks leave at Google is named by its marks, and nothing is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from infra.deployer import sweeper
from infra.names import mark_of
from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines
from tpustack.ci.result import Outcome, Result, Run
from tpustack.ci.sweep import orphans
from tpustack.cloud.google import Google

PROJECT, ZONE = "tpu-stack-local", "us-central1-b"
COMPUTE = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}"
STORAGE = "storage.googleapis.com/storage/v1/b"
TPU = f"tpu.googleapis.com/v2alpha1/projects/{PROJECT}/locations/{ZONE}"
NODE = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
TPU_API = "tpu.googleapis.com"
KINDS = ("TPU request", "TPU", "VM", "disk", "bucket")


def labels(stack: str) -> dict[str, str]:
    own = {"managed-by": "pulumi", "tpu-stack": stack, "request": stack}
    return {**own, "tpu-stack-mark": mark_of(stack)}


STAY = (
    labels("pr-8"),  # It has a state.
    labels("dev"),
    labels("pr-7x"),
    labels("pr-7") | {"managed-by": "somebody"},
    labels("pr-7") | {"request": "pr-9"},
    labels("pr-7") | {"tpu-stack-mark": "0f1e2d3c"},  # Another backend's.
)


@pytest.fixture
def cloud(tmp_path: Path) -> LocalCloud:
    return LocalCloud(tmp_path / "home")


@pytest.fixture
def api(cloud: LocalCloud) -> Iterator[Client]:
    cloud.start()
    projects.enable_services(cloud.cloud, PROJECT, [TPU_API, "iam.googleapis.com"])
    cloud.cloud.machines = fake = FakeMachines()
    yield Client(cloud)
    fake.suspend_all()
    cloud.stop()


def make(api: Client, name: str, own: dict[str, str]) -> None:
    """One resource of each kind with these labels."""
    parent = TPU.partition("v2alpha1/")[2]
    node = NODE | {"labels": own}
    spec = {"parent": parent, "nodeId": f"{name}-queued", "node": node}
    api.post(f"{TPU}/queuedResources", {"tpu": {"nodeSpec": [spec]}}, queuedResourceId=name)
    api.post(f"{TPU}/nodes", node, nodeId=name)
    api.post(f"{COMPUTE}/instances", machine(ZONE, name=name, labels=own))
    api.post(f"{COMPUTE}/disks", {"name": f"{name}-disk", "sizeGb": "10", "labels": own})
    api.post(STORAGE, {"name": name, "location": "US-CENTRAL1", "labels": own}, project=PROJECT)


def named(api: Client, *known: str, before: tuple[str, ...] = ()) -> list[Result]:
    """What is named of the stacks that the backend does not know, and did not know before."""
    backend = SimpleNamespace(stacks=lambda: dict.fromkeys(known))
    run = cast(Run, SimpleNamespace(backend=backend))
    return orphans(run, Google(api.session), PROJECT, before)


def test_only_what_no_state_knows_of_is_named(api: Client) -> None:
    for number, own in enumerate(STAY):
        make(api, f"stays-{number}", own)
    assert named(api, "dev", "pr-8") == []
    make(api, "orphan", labels("pr-7"))
    (found,) = named(api, "dev", "pr-8")
    assert (found.stack, found.outcome) == ("pr-7", Outcome.FAILURE)
    assert all(f"{kind} orphan" in found.problem for kind in KINDS)
    assert "stays" not in found.problem
    # The run itself has deleted it, and Google's lists have not heard of it yet.
    assert named(api, "dev", "pr-8", before=("pr-7",)) == []


GLOBAL = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/global"
IAM = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"


def make_unlabelled(api: Client, name: str, description: str) -> None:
    """An account, a health check, and a network."""
    said = {"displayName": "x", "description": description}
    api.post(IAM, {"accountId": f"{name}-sa", "serviceAccount": said})
    check = {"name": name, "type": "HTTP", "httpHealthCheck": {"port": 80}}
    api.post(f"{GLOBAL}/healthChecks", check | {"description": description})
    net = {"name": name, "autoCreateSubnetworks": False, "description": description}
    api.post(f"{GLOBAL}/networks", net)


def test_resources_without_labels_are_recognized_by_this_backends_mark(
    api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://theirs")
    others = mark_of("pr-7")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://ours")
    for name, description in {
        "theirs": f"Made by tpu-stack for stack pr-7 ({others})",
        "stranger": "Made by tpu-stack for stack pr-7",
        "lives": f"Made by tpu-stack for stack pr-8 ({mark_of('pr-8')})",
        "ours-dev": f"Made by tpu-stack for stack dev ({mark_of('dev')})",
    }.items():
        make_unlabelled(api, name, description)
    assert named(api, "pr-8") == []
    make_unlabelled(api, "orphan", f"Made by tpu-stack for stack pr-7 ({mark_of('pr-7')})")
    (found,) = named(api, "pr-8")
    for what in ("account orphan-sa@", "health check orphan", "network orphan"):
        assert what in found.problem


def grant(api: Client, without: str = "") -> str:
    """Somebody who may do what sweeping takes, but for one permission."""
    who = "user:sweeper@example.com"
    permissions = [each for each in sweeper() if each != without]
    role = {"title": "Sweeper", "includedPermissions": permissions}
    roles = f"iam.googleapis.com/v1/projects/{PROJECT}/roles"
    name = api.post(roles, {"roleId": "sweeper", "role": role})["name"]
    url = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = api.post(f"{url}:getIamPolicy")
    policy["bindings"].append({"role": name, "members": [who]})
    api.post(f"{url}:setIamPolicy", {"policy": policy})
    return who


def test_sweeping_needs_exactly_the_documented_permissions(
    api: Client, cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://ours")
    make(api, "labelled", labels("pr-7"))
    make_unlabelled(api, "orphan", f"Made by tpu-stack for stack pr-7 ({mark_of('pr-7')})")
    template = machine(ZONE, labels=labels("pr-7")) | {"machineType": "n1-standard-1"}
    api.post(f"{GLOBAL}/instanceTemplates", {"name": "group", "properties": template})
    who = grant(api)
    (found,) = named(api.as_member(who), "pr-8")
    assert "template group" in found.problem
    asked = cloud.cloud.asked[who]
    assert set(asked) == set(sweeper())
    assert all(asked.values())


def test_a_disabled_api_has_no_orphans(api: Client) -> None:
    api.post(f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services/{TPU_API}:disable", {})
    disk = {"name": "orphan", "sizeGb": "10", "labels": labels("pr-7")}
    api.post(f"{COMPUTE}/disks", disk)
    (found,) = named(api, "dev")
    assert "disk orphan" in found.problem
