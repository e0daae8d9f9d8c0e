"""Machines of Compute Engine with a TPU: their lives are counted from the first of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Fault
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client, machine, session
from tests.unit.localcloud.fake_machines import FakeMachines
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_infra.settings import StackSettings
from tpu_infra.settings.parse import parse
from tpustack.cloud import google as google_client
from tpustack.cloud.google import Google, look_up
from tpustack.errors import TpustackError
from tpustack.recovery.machines import Lives, end_machines, lost_slices
from tpustack.recovery.state import id_of, with_what_may_be_there

PLACE = f"compute.googleapis.com/compute/v1/projects/{DEFAULT_PROJECT}"
ZONE = f"{PLACE}/zones/us-east5-a"
HOUR = 3600.0
NAME, BUCKET = "tpu-stack-mine-tpu", f"{DEFAULT_PROJECT}-tpu-stack-mine"
INSTANCE = f"projects/{DEFAULT_PROJECT}/zones/us-east5-a/instances/{NAME}"
OWN = {"tpu-stack": "mine"}
URN = "urn:pulumi:dev::tpu-stack::gcp:compute/instance:Instance::tpu"
SPOT = {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE"}
SPOT["instanceTerminationAction"] = "DELETE"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    made = LocalCloud(tmp_path / "home", clock=VirtualClock(), latency="none")
    made.cloud.machines = FakeMachines()
    made.start()
    apis = ("compute.googleapis.com", "storage.googleapis.com")
    projects.enable_services(made.cloud, DEFAULT_PROJECT, apis)
    who = session(made)
    monkeypatch.setattr(google_client, "_transport", lambda: who)
    monkeypatch.setattr("tpustack.recovery.machines.time.time", made.cloud.clock.now)
    Client(made).post(
        "storage.googleapis.com/storage/v1/b", {"name": BUCKET}, project=DEFAULT_PROJECT
    )
    yield made
    made.stop()


@pytest.fixture
def api(cloud: LocalCloud) -> Client:
    return Client(cloud)


def limited(hours: float | None, **tpu: Any) -> StackSettings:
    config: dict[str, Any] = {
        "gcp:project": DEFAULT_PROJECT,
        "tpu-stack:architecture": "compute",
        "tpu-stack:zone": "us-east5-a",
        "tpu-stack:tpu": {"acceleratorType": "ct6e-standard-4t", **tpu},
    }
    if hours:
        config["tpu-stack:limits"] = {"timeToLiveHours": hours}
    return parse(config, "mine")


def ended(settings: StackSettings) -> list[str]:
    said: list[str] = []
    end_machines(Google(), settings, "mine", said.append)
    return said


def insert(api: Client, **labels: str) -> None:
    made = machine("us-east5-a", name=NAME, scheduling=SPOT, labels=OWN | labels)
    api.post(f"{ZONE}/instances", made)


def insert_slice(
    api: Client, scheduling: Mapping[str, Any] = MappingProxyType(SPOT), **labels: str
) -> None:
    for url, body in slice_requests(scheduling, **labels):
        api.post(url, body)


def slice_requests(scheduling: Mapping[str, Any], **labels: str) -> list[tuple[str, Any]]:
    """What the provider asks for, in its order, to create a slice of four machines."""
    policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
    family = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    params = {
        "sourceImage": f"projects/ubuntu-os-accelerator-images/global/images/family/{family}",
        "diskSizeGb": "200",
        "diskType": "hyperdisk-balanced",
    }
    properties = machine() | {
        "machineType": "ct6e-standard-4t",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
        "scheduling": dict(scheduling),
        "labels": OWN | labels,
    }
    body = {
        "name": NAME,
        "baseInstanceName": f"{NAME}-###",
        "instanceTemplate": "global/instanceTemplates/t",
        "targetSize": 4,
        "targetSizePolicy": {"mode": "BULK"},
        "resourcePolicies": {"workloadPolicy": "regions/us-east5/resourcePolicies/p"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }
    return [
        (f"{PLACE}/regions/us-east5/resourcePolicies", {"name": "p", "workloadPolicy": policy}),
        (f"{PLACE}/global/instanceTemplates", {"name": "t", "properties": properties}),
        (f"{ZONE}/instanceGroupManagers", body),
    ]


def instances(api: Client) -> list[str]:
    return [one["name"] for one in api.get(f"{ZONE}/instances").get("items", ())]


def recovered(api: Client, cloud: LocalCloud, hours: int) -> bool:
    """Whether a machine that is gone was recreated, as `tpustack recover` does it."""
    found = api.get(f"{ZONE}/instances/{NAME}")
    outputs = {
        "name": NAME,
        "project": DEFAULT_PROJECT,
        "zone": "us-east5-a",
        "creationTimestamp": found["creationTimestamp"],
        "scheduling": {"preemptible": True, "maxRunDuration": {"seconds": hours * 3600}},
    }
    resource = {"urn": URN, "type": "gcp:compute/instance:Instance", "outputs": outputs}
    api.delete(f"{ZONE}/instances/{NAME}")
    lives = Lives(Google(), BUCKET, [resource], lambda text: None)
    if not lives.left({URN: "gone"}):
        return False
    insert(api)
    lives.note([URN])
    return True


def test_a_machine_is_deleted_when_its_hours_are_over_and_not_before(
    cloud: LocalCloud, api: Client
) -> None:
    insert(api)
    cloud.cloud.clock.sleep(7.9 * HOUR)
    assert ended(limited(8)) == []
    cloud.cloud.clock.sleep(HOUR)
    assert ended(limited(8)) == [f"{NAME} is deleted: its 8 hours are over"]
    assert instances(api) == []
    assert ended(limited(8)) == []


def test_the_hours_of_a_replacement_count_from_the_first(cloud: LocalCloud, api: Client) -> None:
    insert(api)
    for _ in range(3):
        cloud.cloud.clock.sleep(2 * HOUR)
        assert recovered(api, cloud, 8)
    assert ended(limited(8)) == []
    cloud.cloud.clock.sleep(2.1 * HOUR)
    assert ended(limited(8)) == [f"{NAME} is deleted: its 8 hours are over"]


def test_a_machine_whose_hours_are_over_is_not_recreated(cloud: LocalCloud, api: Client) -> None:
    insert(api)
    cloud.cloud.clock.sleep(5 * HOUR)
    assert recovered(api, cloud, 8)
    cloud.cloud.clock.sleep(4 * HOUR)
    assert not recovered(api, cloud, 8)


def test_a_recovery_that_was_killed_forgets_no_first_birth(cloud: LocalCloud, api: Client) -> None:
    insert(api)
    cloud.cloud.clock.sleep(5 * HOUR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lives, "note", lambda self, urns: None)
        assert recovered(api, cloud, 8)
    cloud.cloud.clock.sleep(4 * HOUR)
    assert not recovered(api, cloud, 8)


def test_what_a_person_creates_begins_a_life_of_its_own(cloud: LocalCloud, api: Client) -> None:
    insert(api)
    cloud.cloud.clock.sleep(5 * HOUR)
    assert recovered(api, cloud, 8)
    api.delete(f"{ZONE}/instances/{NAME}")
    cloud.cloud.clock.sleep(5 * HOUR)
    insert(api)
    assert ended(limited(8)) == []


def test_a_bucket_that_does_not_answer_ends_no_limit_and_recreates_nothing(
    cloud: LocalCloud, api: Client
) -> None:
    insert(api)
    cloud.cloud.clock.sleep(9 * HOUR)
    cloud.cloud.faults.add(Fault("storage.objects.get", status=403, message="you may not"))
    assert ended(limited(8))[-1] == f"{NAME} is deleted: its 8 hours are over"
    insert(api)
    with pytest.raises(TpustackError, match="you may not"):
        recovered(api, cloud, 8)


def test_a_recovery_that_failed_ends_nothing_that_a_person_creates_later(
    cloud: LocalCloud, api: Client
) -> None:
    """Its note is of a machine that never came."""
    insert(api)
    cloud.cloud.clock.sleep(5 * HOUR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lives, "note", lambda self, urns: None)
        assert recovered(api, cloud, 8)
    api.delete(f"{ZONE}/instances/{NAME}")
    cloud.cloud.clock.sleep(5 * HOUR)
    insert(api)
    assert ended(limited(8)) == []
    assert recovered(api, cloud, 8)


@pytest.mark.parametrize("content", [b"no JSON", b'{"remaking": 1}', b'{"lives": 1}'])
def test_a_damaged_record_ends_no_limit(cloud: LocalCloud, api: Client, content: bytes) -> None:
    insert(api)
    cloud.cloud.clock.sleep(9 * HOUR)
    Bucket(BUCKET, Google().exchange).write(paths.STATE, content)
    assert ended(limited(8))[-1] == f"{NAME} is deleted: its 8 hours are over"


@pytest.mark.parametrize("method", ["compute.instances.get", "compute.instanceGroupManagers.get"])
def test_nothing_is_deleted_when_google_does_not_say_what_there_is(
    cloud: LocalCloud, api: Client, method: str
) -> None:
    insert(api)
    cloud.cloud.clock.sleep(9 * HOUR)
    cloud.cloud.faults.add(Fault(method, status=500, message="an error of ours"))
    with pytest.raises(TpustackError, match="an error of ours"):
        ended(limited(8))
    assert cloud.cloud.store.get("compute", INSTANCE) is not None


def test_a_refused_deletion_fails_and_is_tried_again(cloud: LocalCloud, api: Client) -> None:
    insert(api)
    cloud.cloud.clock.sleep(9 * HOUR)
    cloud.cloud.faults.add(Fault("compute.instances.delete", status=403, message="no", count=1))
    with pytest.raises(TpustackError, match="no"):
        ended(limited(8))
    assert ended(limited(8)) == [f"{NAME} is deleted: its 8 hours are over"]


def test_what_is_left_of_a_slice_is_deleted_without_a_limit(cloud: LocalCloud, api: Client) -> None:
    insert_slice(api)
    settings = limited(None, topology="4x4")
    assert ended(settings) == []
    cloud.cloud.store.delete("compute", f"{INSTANCE}-003")
    assert len(instances(api)) == 3
    assert ended(settings) == [f"{NAME} is deleted: it is without 1 of its 4 machines"]
    assert instances(api) == []
    assert ended(settings) == []


FLEX = SPOT | {"provisioningModel": "FLEX_START", "maxRunDuration": {"seconds": "86400"}}


@pytest.mark.parametrize(
    ("scheduling", "lost"), [(SPOT, {URN: "without 4 of its 4 machines"}), (FLEX, {})]
)
def test_a_slice_whose_hosts_are_stopped_is_lost_if_it_is_a_spot_slice(
    cloud: LocalCloud, api: Client, scheduling: dict[str, Any], lost: dict[str, str]
) -> None:
    insert_slice(api, scheduling)
    cloud.cloud.clock.sleep(HOUR)
    assert len(instances(api)) == 4
    outputs = {"project": DEFAULT_PROJECT, "zone": "us-east5-a", "name": NAME}
    group = {
        "urn": URN,
        "type": "gcp:compute/instanceGroupManager:InstanceGroupManager",
        "outputs": outputs | {"targetSizePolicies": [{"mode": "BULK"}]},
    }
    assert lost_slices(Google(), [group]) == {}
    for name in instances(api):
        api.post(f"{ZONE}/instances/{name}/stop")
    assert lost_slices(Google(), [group]) == lost


def test_a_slice_that_waits_for_capacity_is_neither_lost_nor_deleted(
    cloud: LocalCloud, api: Client
) -> None:
    cloud.cloud.store.put("setting", "compute.stockout", {"zones": ["us-east5-a"]})
    insert_slice(api)
    cloud.cloud.clock.sleep(3 * HOUR)
    state = {"project": DEFAULT_PROJECT, "zone": "us-east5-a", "name": NAME}
    kind = "gcp:compute/instanceGroupManager:InstanceGroupManager"
    declared = {"urn": URN, "type": kind, "outputs": {**state, "targetSizePolicies": [{}]}}
    assert lost_slices(Google(), [declared]) == {}
    assert ended(limited(None, topology="4x4", capacity="spot")) == []
    outputs = {"architecture": "compute", "project": DEFAULT_PROJECT, "tpu_zone": "us-east5-a"}
    assert look_up(Google(), outputs, NAME)[1]["health"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    cloud.cloud.store.delete("setting", "compute.stockout")
    cloud.cloud.clock.sleep(31)
    assert look_up(Google(), outputs, NAME)[1]["state"] == "READY"


@pytest.mark.parametrize("create", [insert, insert_slice])
def test_a_tpu_of_another_stack_is_left_alone(
    cloud: LocalCloud, api: Client, create: Callable[..., None]
) -> None:
    create(api, **{"tpu-stack": "other"})
    before = instances(api)
    cloud.cloud.clock.sleep(9 * HOUR)
    with pytest.raises(TpustackError, match="isn't labelled tpu-stack=mine"):
        ended(limited(8, topology="4x4"))
    assert instances(api) == before


def test_the_age_of_a_slice_is_enough_when_google_does_not_list_its_machines(
    cloud: LocalCloud, api: Client
) -> None:
    insert_slice(api)
    cloud.cloud.clock.sleep(9 * HOUR)
    method = "compute.instanceGroupManagers.listManagedInstances"
    cloud.cloud.faults.add(Fault(method, status=403, message="you may not"))
    assert ended(limited(8, topology="4x4")) == [f"{NAME} is deleted: its 8 hours are over"]


def test_the_record_is_the_agents(cloud: LocalCloud, api: Client) -> None:
    insert(api)
    assert recovered(api, cloud, 8)
    found = Bucket(BUCKET, Google().exchange).read(paths.STATE)
    assert found is not None
    assert list(json.loads(found[0])["lives"]) == [NAME]


class KilledError(Exception):
    """The engine is dead."""


class Engine:
    """Creates and deletes a slice as an engine does, which notes what it begins, until it dies."""

    def __init__(self, cloud: LocalCloud, api: Client, dies_at: int) -> None:
        self._cloud, self._api, self._dies_at = cloud, api, dies_at
        self.made: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []
        self.points = 0

    def up(self) -> None:
        kinds = ("resourcePolicy", "instanceTemplate", "instanceGroupManager")
        for kind, (url, body) in zip(kinds, slice_requests(SPOT), strict=True):
            token = f"gcp:compute/{kind}:{kind[0].upper()}{kind[1:]}"
            place = {"project": DEFAULT_PROJECT, "region": "us-east5", "zone": "us-east5-a"}
            inputs = {**place, "name": body["name"]}
            resource = {"urn": f"urn:{kind}", "type": token, "inputs": inputs}
            if resource["urn"] not in {each["urn"] for each in self.made}:
                self._do("creating", resource, lambda: self._api.post(url, body))  # noqa: B023
                self.made.append({**resource, "id": id_of(resource)})

    def down(self) -> None:
        for resource in reversed(list(self.made)):
            self._do("deleting", resource, lambda: self._api.delete(self._url(resource)))  # noqa: B023
            self.made.remove(resource)

    def _do(self, kind: str, resource: dict[str, Any], request: Callable[[], object]) -> None:
        self._pending = [{"type": kind, "resource": resource}]
        steps = (lambda: None, request, lambda: self._cloud.cloud.clock.sleep(300))
        for step in steps:
            step()
            self.points += 1
            if self.points == self._dies_at:
                raise KilledError
        self._pending = []

    def recover(self) -> None:
        """Do what `tpustack recover` does: refresh the state, with what may have been created."""
        state = {"resources": self.made, "pending_operations": self._pending}
        self._cloud.cloud.clock.sleep(300)
        found = with_what_may_be_there(state)["resources"]
        self.made = [each for each in found if self._is_there(each)]

    def _is_there(self, resource: dict[str, Any]) -> bool:
        url = self._url(resource)
        within, name = url.rpartition("/")[::2]
        return name in {each["name"] for each in self._api.get(within).get("items", ())}

    def _url(self, resource: dict[str, Any]) -> str:
        return f"compute.googleapis.com/compute/v1/{resource['id']}"


def test_a_slice_whose_update_is_killed_at_any_request_comes_up_and_leaves_nothing(
    cloud: LocalCloud, api: Client
) -> None:
    """Before each request, with it on its way and after it: the provider here makes no slices."""
    cloud.cloud.latency_profile = "real"
    parts = [url for url, _ in slice_requests(SPOT)]
    kills = 0
    for point in range(1, 19):
        engine = Engine(cloud, api, point)
        for step in (engine.up, engine.down):
            try:
                step()
            except KilledError:
                kills += 1
                engine.recover()
                step()
            if step == engine.up:
                group = api.get(f"{ZONE}/instanceGroupManagers/{NAME}")
                assert group["status"]["isStable"]
                assert len(instances(api)) == 4
                assert len(engine.made) == 3
        assert engine.made == []
        assert instances(api) == []
        assert [api.get(url).get("items", []) for url in parts] == [[], [], []]
    assert kills == 18
