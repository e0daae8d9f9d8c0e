"""What requests' stacks leave at Google is found by its labels, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client, machine
from tests.unit.localcloud.aiplatform.test_custom_jobs import JOBS as CUSTOM_JOBS, body
from tests.unit.localcloud.fake_machines import FakeMachines
from tpu_infra.deployer import sweeper
from tpu_infra.names import VERTEX, mark_of
from tpustack.ci.result import Outcome, Run
from tpustack.ci.sweep import sweep_orphans
from tpustack.cloud.google import Google

PROJECT, ZONE = "tpu-stack-local", "us-central1-b"
COMPUTE = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}"
STORAGE = "storage.googleapis.com/storage/v1/b"
TPU = f"tpu.googleapis.com/v2alpha1/projects/{PROJECT}/locations/{ZONE}"
NODE = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
TPU_API, VERTEX_API = "tpu.googleapis.com", "aiplatform.googleapis.com"
KINDS = ("queued resource", "TPU", "VM", "disk", "bucket")


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
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cloud(tmp_path: Path, clock: VirtualClock) -> LocalCloud:
    return LocalCloud(tmp_path / "home", clock=clock)


@pytest.fixture
def api(cloud: LocalCloud) -> Iterator[Client]:
    cloud.start()
    projects.enable_services(cloud.cloud, PROJECT, [TPU_API, VERTEX_API, "iam.googleapis.com"])
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
    upload = f"https://storage.googleapis.com/upload/storage/v1/b/{name}/o"
    named = {"uploadType": "media", "name": "a folder/an object?"}
    assert api.session.post(upload, params=named, data=b"x", timeout=30).ok


def there(api: Client) -> set[str]:
    lists = {
        f"{TPU}/queuedResources": "queuedResources",
        f"{TPU}/nodes": "nodes",
        f"{COMPUTE}/instances": "items",
        f"{COMPUTE}/disks": "items",
    }
    found = {each["name"] for url, items in lists.items() for each in api.get(url).get(items, [])}
    return found | {each["name"] for each in api.get(STORAGE, project=PROJECT).get("items", [])}


def sweep(api: Client, *known: str, remove: bool, hours: float = 3) -> list[Any]:
    """Sweep some hours after everything was made."""
    backend = SimpleNamespace(stacks=lambda: dict.fromkeys(known))
    job = cast(Run, SimpleNamespace(backend=backend))
    now = datetime.fromtimestamp(VirtualClock().now(), timezone.utc) + timedelta(hours=hours)
    return sweep_orphans(job, Google(api.session), PROJECT, now, known, remove=remove)


def test_orphans_are_listed_and_deleted_only_on_request(api: Client) -> None:
    for number, own in enumerate(STAY):
        make(api, f"stays-{number}", own)
    others = there(api)
    make(api, "orphan", labels("pr-7"))
    everything = there(api)
    (named,) = sweep(api, "dev", "pr-8", remove=False)
    assert (named.stack, named.outcome) == ("pr-7", Outcome.NO_CHANGE)
    assert all(f"{kind} orphan" in named.notes[0] for kind in KINDS)
    assert there(api) == everything
    (removed,) = sweep(api, "dev", "pr-8", remove=True)
    assert removed.outcome is Outcome.CHANGES
    assert there(api) == others
    assert sweep(api, "dev", "pr-8", remove=True) == []


GLOBAL = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/global"
REGION = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/regions/us-central1"
IAM = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"


def make_unlabelled(api: Client, name: str, description: str) -> None:
    """An account, a health check, and a network with what a stack puts into it."""
    said = {"displayName": "x", "description": description}
    api.post(IAM, {"accountId": f"{name}-sa", "serviceAccount": said})
    check = {"name": name, "type": "HTTP", "httpHealthCheck": {"port": 80}}
    api.post(f"{GLOBAL}/healthChecks", check | {"description": description})
    net = {"name": name, "autoCreateSubnetworks": False, "description": description}
    api.post(f"{GLOBAL}/networks", net)
    link = f"projects/{PROJECT}/global/networks/{name}"
    rule = {"name": name, "network": link, "allowed": [{"IPProtocol": "tcp"}]}
    api.post(f"{GLOBAL}/firewalls", rule)
    api.post(f"{REGION}/routers", {"name": name, "network": link})
    subnet = {"name": name, "network": link, "ipCidrRange": "10.7.0.0/20"}
    api.post(f"{REGION}/subnetworks", subnet)


def unlabelled(api: Client) -> set[str]:
    urls = (f"{GLOBAL}/{kind}" for kind in ("healthChecks", "networks", "firewalls"))
    regional = (f"{REGION}/{kind}" for kind in ("routers", "subnetworks"))
    listed = [each for url in (*urls, *regional) for each in api.get(url).get("items", [])]
    return {f"{each['kind']} {each['name']}" for each in listed} | {
        each["email"] for each in api.get(IAM).get("accounts", [])
    }


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
    before = unlabelled(api)
    make_unlabelled(api, "orphan", f"Made by tpu-stack for stack pr-7 ({mark_of('pr-7')})")
    everything = unlabelled(api)
    (named,) = sweep(api, "pr-8", remove=False)
    assert "account orphan-sa@" in named.notes[0]
    assert unlabelled(api) == everything
    for _ in range(2):  # The network goes once nothing is in it.
        (removed,) = sweep(api, "pr-8", remove=True)
        assert (removed.outcome, removed.problem) == (Outcome.CHANGES, "")
    assert unlabelled(api) == before


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
    before = there(api) | unlabelled(api)
    make(api, "labelled", labels("pr-7"))
    make_unlabelled(api, "orphan", f"Made by tpu-stack for stack pr-7 ({mark_of('pr-7')})")
    template = machine(ZONE, labels=labels("pr-7")) | {"machineType": "n1-standard-1"}
    api.post(f"{GLOBAL}/instanceTemplates", {"name": "group", "properties": template})
    link = f"projects/{PROJECT}/global/instanceTemplates/group"
    group = {"name": "group", "baseInstanceName": "group", "targetSize": 0}
    api.post(f"{COMPUTE}/instanceGroupManagers", {**group, "instanceTemplate": link})

    told = {
        "displayName": VERTEX,
        "description": f"Made by tpu-stack for stack pr-7 ({mark_of('pr-7')})",
    }
    runner = api.post(IAM, {"accountId": "orphan-vx", "serviceAccount": told})["email"]
    api.post(CUSTOM_JOBS, body(serviceAccount=runner) | {"labels": {"tpu-stack-job": "one"}})

    who = grant(api)
    for _ in range(2):  # The account goes once its job has ended.
        (removed,) = sweep(api.as_member(who), "pr-8", remove=True)
        assert (removed.outcome, removed.problem) == (Outcome.CHANGES, "")
    assert there(api) | unlabelled(api) == before
    asked = cloud.cloud.asked[who]
    assert set(asked) == set(sweeper())
    assert all(asked.values())


def test_resources_still_in_use_are_deleted_by_the_next_sweep(
    api: Client, cloud: LocalCloud, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://ours")
    before = unlabelled(api)
    make_unlabelled(api, "orphan", f"Made by tpu-stack for stack pr-7 ({mark_of('pr-7')})")
    cloud.cloud.latency_profile = "real"
    (first,) = sweep(api, "pr-8", remove=True)
    assert first.outcome is Outcome.CHANGES
    assert "Left for the next sweep: " in first.notes[1]
    assert "network orphan" in first.notes[1]
    clock.advance(120)
    (second,) = sweep(api, "pr-8", remove=True)
    assert (second.outcome, len(second.notes)) == (Outcome.CHANGES, 1)
    clock.advance(120)
    assert unlabelled(api) == before


def test_a_disabled_api_has_no_orphans(api: Client) -> None:
    api.post(f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services/{TPU_API}:disable", {})
    disk = {"name": "orphan", "sizeGb": "10", "labels": labels("pr-7")}
    api.post(f"{COMPUTE}/disks", disk)
    (named,) = sweep(api, "dev", remove=False)
    assert "disk orphan" in named.notes[0]


def test_young_orphans_and_those_of_an_empty_backend_are_kept(api: Client) -> None:
    make(api, "orphan", labels("pr-7"))
    everything = there(api)
    for known, hours, why in (
        (("pr-8",), 1.9, "They stay until all are two hours old"),
        (("dev",), 3, "the backend has no PR stack"),
        ((), 3, "the backend has no PR stack"),
    ):
        (kept,) = sweep(api, *known, remove=True, hours=hours)
        assert why in kept.notes[0]
        assert kept.outcome is Outcome.NO_CHANGE
    assert there(api) == everything


def test_a_vm_does_not_say_which_group_is_deleted(api: Client) -> None:
    properties = machine(ZONE, labels=labels("prod")) | {"machineType": "n1-standard-1"}
    api.post(f"{GLOBAL}/instanceTemplates", {"name": "theirs", "properties": properties})
    group = {
        "name": "prod",
        "baseInstanceName": "prod",
        "targetSize": 0,
        "instanceTemplate": f"projects/{PROJECT}/global/instanceTemplates/theirs",
    }
    api.post(f"{COMPUTE}/instanceGroupManagers", group)
    path = f"projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers/prod"
    said = {"items": [{"key": "created-by", "value": path}]}
    vm = machine(ZONE, name="liar", labels=labels("pr-7"), metadata=said)
    api.post(f"{COMPUTE}/instances", vm)
    assert sweep(api, "pr-8", remove=True) == []
    assert [each["name"] for each in api.get(f"{COMPUTE}/instanceGroupManagers")["items"]] == [
        "prod"
    ]
