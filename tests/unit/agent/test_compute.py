"""A VM's agent recreates a spot TPU on Compute Engine: one machine, or a slice as a whole."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Latency
from localcloud.services.compute import instances
from localcloud.testing import Client, machine, session
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.recovery import Recovery, World
from tpu_core.google import Json, parse
from tpu_core.tpu import Place
from tpu_infra.deployer import permissions_of_role
from tpu_infra.settings.parse import parse as settings_of

from .conftest import PROJECT, Killed, deadly

PLACE = f"compute.googleapis.com/compute/v1/projects/{PROJECT}"
ZONE = f"{PLACE}/zones/us-east5-a"
EMAIL = f"machines@{PROJECT}.iam.gserviceaccount.com"
MEMBER = f"serviceAccount:{EMAIL}"
LABELS = {"tpu-stack": "test", "tpu-stack-mark": "abc"}
BUDGETS = {"preemption": 48, "failure": 10}
BUCKET = "storage.googleapis.com/upload/storage/v1/b/a-bucket/o"


def properties(action: str) -> Json:
    """What a machine with four chips of v6e is made of."""
    family = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    params = {
        "sourceImage": f"projects/ubuntu-os-accelerator-images/global/images/family/{family}",
        "diskSizeGb": "200",
        "diskType": "hyperdisk-balanced",
    }
    spot = {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE"}
    return machine() | {
        "machineType": "ct6e-standard-4t",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
        "scheduling": {**spot, "instanceTerminationAction": action},
        "serviceAccounts": [
            {"email": EMAIL, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        ],
        "metadata": {"items": [{"key": "tpu-name", "value": "t"}]},
        "tags": {"items": ["tpu"]},
        "labels": LABELS,
    }


@pytest.fixture
def latency() -> Latency:
    """A machine takes its time to come and to go."""
    return "real"


class Agent:
    """The agent of a VM with exactly the role that a stack gives it, which may be killed."""

    def __init__(self, cloud: LocalCloud, clock: VirtualClock, form: str, google: Client) -> None:
        self.clock, self.form, self.google = clock, form, google
        own = session(cloud, MEMBER)

        def call(method: str, url: str, body: str | None) -> tuple[int, dict[str, object]]:
            answer = own.request(method, url, data=body)
            return answer.status_code, parse(answer.content)

        self.call, self.lines = call, list[str]()
        self.start()

    def start(self) -> None:
        world = World(self.clock.now, self.lines.append, lambda host, port: None, lambda: 0.5)
        place = Place(PROJECT, "us-east5-a", "a-bucket", form=self.form)
        self.recovery = Recovery(place, FakeClient(lambda *sent: self.call(*sent)), world)

    def looks(self, seconds: float, until: Callable[[], bool] = lambda: False, **more: Any) -> None:
        end = self.clock.now() + seconds
        while not until() and self.clock.now() < end:
            self.recovery.look(["t"], BUDGETS, **more)
            self.clock.advance(10.0)

    def running(self) -> dict[str, str]:
        """The number of each machine that runs, by its name."""
        found = self.google.get(f"{ZONE}/instances").get("items", ())
        return {one["name"]: one["id"] for one in found if one["status"] == "RUNNING"}


@pytest.fixture
def make(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock
) -> Callable[[str], tuple[Agent, dict[str, str]]]:
    def made(form: str) -> tuple[Agent, dict[str, str]]:
        apis = ("iam.googleapis.com", "compute.googleapis.com", "storage.googleapis.com")
        projects.enable_services(local_cloud.cloud, PROJECT, apis)
        grant(google, clock, form)
        body: Json = {"name": "t", **properties("STOP")}
        url = f"{ZONE}/instances"
        body["machineType"] = "zones/us-east5-a/machineTypes/ct6e-standard-4t"
        if form == "slice":
            url, body = f"{ZONE}/instanceGroupManagers", slice_of(google)
        content = json.dumps({"tpus": {"t": {**body, "labels": LABELS}}})
        query = {"uploadType": "media", "name": "agent/declaration.json"}
        answer = google.session.post(f"https://{BUCKET}", params=query, data=content, timeout=30)
        answer.raise_for_status()
        # The provider adds one of its own, which the next `pulumi up --refresh` expects.
        added = {"labels": {**LABELS, "goog-pulumi-provisioned": "true"}}
        google.post(url, body if form == "slice" else {**body, **added})
        clock.advance(900.0)
        agent = Agent(local_cloud, clock, form, google)
        agent.looks(20)
        return agent, agent.running()

    return made


def slice_of(google: Client) -> Json:
    """Make what a slice of four machines is made from, and return the group's body."""
    policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
    named = {"name": "p", "workloadPolicy": policy}
    google.post(f"{PLACE}/regions/us-east5/resourcePolicies", named)
    template = {"name": "m", "properties": properties("DELETE")}
    google.post(f"{PLACE}/global/instanceTemplates", template)
    return {
        "name": "t",
        "baseInstanceName": "t-###",
        "versions": [{"instanceTemplate": "global/instanceTemplates/m"}],
        "targetSize": 4,
        "targetSizePolicy": {"mode": "BULK"},
        "resourcePolicies": {"workloadPolicy": "regions/us-east5/resourcePolicies/p"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }


def grant(google: Client, clock: VirtualClock, form: str) -> None:
    tpu = {"acceleratorType": "ct6e-standard-4t", "capacity": "spot"}
    config: dict[str, Any] = {
        "gcp:project": PROJECT,
        "tpu-stack:zone": "us-east5-a",
        "tpu-stack:architecture": "compute",
        "tpu-stack:tpu": tpu | ({"topology": "4x4"} if form == "slice" else {}),
        "tpu-stack:recovery": {"enabled": True},
    }
    role = {"title": "agent", "includedPermissions": permissions_of_role(settings_of(config, "t"))}
    iam = f"iam.googleapis.com/v1/projects/{PROJECT}"
    google.post(f"{iam}/serviceAccounts", {"accountId": "machines"})
    clock.advance(60.0)
    name = google.post(f"{iam}/roles", {"roleId": "agent", "role": role})["name"]
    manager = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = google.post(f"{manager}:getIamPolicy")
    policy["bindings"] += [
        {"role": one, "members": [MEMBER]} for one in (name, "roles/storage.objectUser")
    ]
    google.post(f"{manager}:setIamPolicy", {"policy": policy})
    own = [{"role": "roles/iam.serviceAccountUser", "members": [MEMBER]}]
    google.post(f"{iam}/serviceAccounts/{EMAIL}:setIamPolicy", {"policy": {"bindings": own}})


def preempt(agent: Agent, cloud: LocalCloud, name: str) -> None:
    instances.preempt(cloud.cloud, f"projects/{PROJECT}/zones/us-east5-a/instances/{name}")


FORMS = [("machine", "t", 1), ("slice", "t-000", 4)]


@pytest.mark.parametrize(("form", "taken", "count"), FORMS)
def test_a_preempted_tpu_comes_back_with_all_its_machines(
    make: Any, local_cloud: LocalCloud, form: str, taken: str, count: int
) -> None:
    agent, before = make(form)
    assert len(before) == count
    preempt(agent, local_cloud, sorted(before)[0])
    agent.looks(1800, until=lambda: len(agent.running()) == count and "back" in str(agent.lines))
    after = agent.running()
    assert before.keys() == after.keys(), agent.lines
    assert not set(before.values()) & set(after.values())
    assert agent.lines[0].startswith("t is deleted and recreated: ")
    assert agent.lines[-1].startswith("t is back after ")
    if form == "machine":
        assert "goog-pulumi-provisioned" in agent.google.get(f"{ZONE}/instances/t")["labels"]
    agent.looks(600)
    assert agent.running() == after


@pytest.mark.parametrize(("form", "taken", "count"), FORMS)
def test_an_agent_that_dies_at_any_call_leaves_a_tpu_that_the_next_one_brings_back(
    make: Any, local_cloud: LocalCloud, form: str, taken: str, count: int
) -> None:
    agent, before = make(form)
    preempt(agent, local_cloud, sorted(before)[0])
    call, deaths = agent.call, 0
    agent.call = deadly(call, random.Random(7), 0.2)
    for _ in range(40):
        try:
            agent.looks(60)
        except Killed:
            deaths += 1
        agent.start()
    assert deaths > 10
    agent.call = call
    agent.looks(1800, until=lambda: len(agent.running()) == count)
    after = agent.running()
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


@pytest.mark.parametrize(("form", "taken", "count"), FORMS)
def test_what_a_person_deletes_or_what_is_not_the_stacks_stays_as_it_is(
    make: Any, google: Client, local_cloud: LocalCloud, form: str, taken: str, count: int
) -> None:
    agent, _ = make(form)
    kind = "instances" if form == "machine" else "instanceGroupManagers"
    google.delete(f"{ZONE}/{kind}/t")
    agent.looks(900)
    assert agent.running() == {}
    assert agent.lines == []


def test_a_tpu_whose_hours_are_over_is_not_recreated(
    make: Any, local_cloud: LocalCloud, clock: VirtualClock
) -> None:
    agent, _ = make("machine")
    clock.advance(3600.0)
    preempt(agent, local_cloud, "t")
    agent.looks(900, hours=1.0)
    assert agent.running() == {}
    assert agent.lines[-1] == "t is not recreated: its 1 hours are over"
    assert agent.recovery.ended
