"""Slices of several instances: what Google refuses, what their guests read, how they end."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud import faults
from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import SETTING
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines

PROJECT = "compute.googleapis.com/compute/v1/projects/tpu-stack-local"
ZONE = f"{PROJECT}/zones/us-east5-a"
POLICIES = f"{PROJECT}/regions/us-east5/resourcePolicies"
GROUPS = f"{ZONE}/instanceGroupManagers"
IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
STANDARD = {"onHostMaintenance": "TERMINATE"}
SPOT = {**STANDARD, "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
ENDS = {"instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": "7200"}}
FLEX = {**STANDARD, **ENDS, "provisioningModel": "FLEX_START", "automaticRestart": False}
URL = "regions/us-east5/resourcePolicies/p"
NAMES = [f"tpu-{number:03}" for number in range(1, 5)]


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com",)


class Slices:
    """A policy and a template, from which a test makes groups."""

    def __init__(self, api: Client, scheduling: dict[str, Any] | None = None) -> None:
        self.api = api
        policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
        api.post(POLICIES, {"name": "p", "workloadPolicy": policy})
        image = f"projects/ubuntu-os-accelerator-images/global/images/family/{IMAGE}"
        params = {"sourceImage": image, "diskSizeGb": "200", "diskType": "hyperdisk-balanced"}
        properties = machine() | {
            "machineType": "ct6e-standard-4t",
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
            "scheduling": scheduling or STANDARD,
        }
        api.post(f"{PROJECT}/global/instanceTemplates", {"name": "t", "properties": properties})

    def insert(self, *, status: int = 200, **fields: Any) -> Any:
        body = {
            "name": "tpu",
            "baseInstanceName": "tpu-###",
            "instanceTemplate": "global/instanceTemplates/t",
            "targetSize": 4,
            "targetSizePolicy": {"mode": "BULK"},
            "resourcePolicies": {"workloadPolicy": URL},
        }
        return self.api.post(GROUPS, {**body, **fields}, status=status)

    def state(self) -> str:
        (applied,) = self.api.get(f"{GROUPS}/tpu")["status"]["appliedAcceleratorTopologies"]
        assert applied["acceleratorTopology"] == "4x4"
        return str(applied["state"])

    def running(self) -> list[str]:
        return [each["name"] for each in self.api.get(f"{ZONE}/instances").get("items", ())]


def test_a_slice_is_made_whole_and_each_host_knows_its_number_and_all_others(
    api: Client, machines: FakeMachines
) -> None:
    slices = Slices(api)
    slices.insert()
    assert slices.state() == "ACTIVE"
    assert slices.running() == NAMES
    told = {spec.name: spec.attributes for spec in machines.specs.values()}
    for number, name in enumerate(NAMES):
        assert told[name]["agent-worker-number"] == str(number)
        assert told[name]["worker-network-endpoints"] == ",".join(NAMES)
        assert told[name]["accelerator-type"] == "v6e-16"
        assert "TPU_TOPOLOGY: '4x4'\n" in told[name]["tpu-env"]
        assert "TPU_HOST_BOUNDS: '2,2,1'\n" in told[name]["tpu-env"]
    assert api.get(f"{GROUPS}/tpu")["targetSize"] == 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"targetSizePolicy": {}},
            "MIGs with TPU accelerator topology require BULK mode in target size policy",
        ),
        ({"targetSize": 3}, "4x4 takes 4 ct6e-standard-4t, all at once"),
        # "A bare name fails."
        ({"resourcePolicies": {"workloadPolicy": "p"}}, "The URL is malformed"),
    ],
)
def test_google_refuses_a_group_that_is_no_whole_slice(
    api: Client, fields: dict[str, Any], said: str
) -> None:
    answer = Slices(api).insert(status=400, **fields)
    assert said in answer["error"]["message"]


def test_a_policy_connects_no_single_instance_and_is_needed_as_long_as_its_slice(
    api: Client,
) -> None:
    slices = Slices(api)
    kind = "zones/us-east5-a/machineTypes/ct6e-standard-4t"
    body = machine("us-east5-a", name="single", machineType=kind)
    refusal = api.post(f"{ZONE}/instances", {**body, "resourcePolicies": [URL]}, status=400)
    assert "not supported for single instances" in refusal["error"]["message"]
    slices.insert()
    api.delete(f"{POLICIES}/p", status=400)
    api.delete(f"{GROUPS}/tpu")
    assert slices.running() == []
    api.delete(f"{POLICIES}/p")


def test_a_slice_with_flex_start_is_made_only_if_failures_are_left_alone(api: Client) -> None:
    slices = Slices(api, FLEX)
    answer = slices.insert(status=400)
    assert "DO_NOTHING" in answer["error"]["message"]
    slices.insert(instanceLifecyclePolicy={"defaultActionOnFailure": "DO_NOTHING"})
    assert slices.running() == NAMES


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("compute.stockout", {"zones": ["us-east5-a"]}, "ZONE_RESOURCE_POOL_EXHAUSTED"),
        # Room for three of the four.
        ("compute.quota", {"PREEMPTIBLE_TPU_V6E": {"us-east5": 12}}, "QUOTA_EXCEEDED"),
    ],
)
def test_a_slice_with_flex_start_waits_until_all_of_it_has_room(
    api: Client, clock: VirtualClock, local_cloud: LocalCloud, name: str, value: Any, code: str
) -> None:
    store = local_cloud.cloud.store
    store.put(SETTING, name, value)
    slices = Slices(api, FLEX)
    slices.insert(instanceLifecyclePolicy={"defaultActionOnFailure": "DO_NOTHING"})
    clock.advance(3 * 3600)
    assert slices.running() == []
    assert slices.state() == "ACTIVATING"
    bulk = api.get(f"{GROUPS}/tpu")["status"]["bulkInstanceOperation"]
    assert bulk["inProgress"]
    assert bulk["lastProgressCheck"]["error"]["errors"][0]["code"] == code
    store.delete(SETTING, name)
    clock.advance(31)
    assert slices.running() == NAMES
    assert slices.state() == "ACTIVE"
    bulk = api.get(f"{GROUPS}/tpu")["status"]["bulkInstanceOperation"]
    assert bulk == {"inProgress": False}
    # What each machine may run counts from now.
    clock.advance(7100)
    assert slices.running() == NAMES
    clock.advance(200)
    assert slices.running() == []


def test_a_preempted_host_is_lost_for_good_and_the_others_stay_until_they_end_themselves(
    api: Client, clock: VirtualClock, local_cloud: LocalCloud
) -> None:
    slices = Slices(api, SPOT)
    slices.insert(instanceLifecyclePolicy={"defaultActionOnFailure": "DO_NOTHING"})
    faults.put(local_cloud.cloud, "preempt", {"name": "tpu-002"})
    clock.advance(300)
    assert slices.running() == [NAMES[0], *NAMES[2:]]
    assert slices.state() == "FAILED"
    api.post(f"{ZONE}/instances/tpu-001/stop")
    clock.advance(300)
    assert api.get(f"{ZONE}/instances/tpu-001")["status"] == "TERMINATED"
    api.delete(f"{GROUPS}/tpu")
    slices.insert()
    assert slices.running() == NAMES
    assert slices.state() == "ACTIVE"


def test_a_host_that_fails_in_googles_own_capacity_brings_its_whole_slice_back(
    api: Client, clock: VirtualClock
) -> None:
    slices = Slices(api)
    slices.insert()
    before = api.get(f"{ZONE}/instances/tpu-001")["id"]
    api.post(f"{ZONE}/instances/tpu-003/stop")
    clock.advance(300)
    assert slices.running() == NAMES
    assert slices.state() == "ACTIVE"
    assert api.get(f"{ZONE}/instances/tpu-001")["id"] != before


def test_a_slice_ends_as_a_whole_when_the_time_of_its_machines_is_up(
    api: Client, clock: VirtualClock
) -> None:
    slices = Slices(api, {**STANDARD, **ENDS})
    slices.insert()
    clock.advance(7100)
    assert slices.running() == NAMES
    clock.advance(200)
    assert slices.running() == []


def test_a_machine_runs_for_thirty_seconds_to_120_days(api: Client) -> None:
    for seconds in (29, 120 * 86400 + 1):
        scheduling = {**ENDS, "maxRunDuration": {"seconds": str(seconds)}}
        answer = api.post(
            f"{ZONE}/instances",
            {**machine("us-east5-a", name="m"), "scheduling": scheduling},
            status=400,
        )
        assert "30 seconds to 120 days" in answer["error"]["message"]


def test_a_slice_takes_no_requests_to_resize_it(api: Client) -> None:
    Slices(api).insert()
    request = {"name": "r", "resizeBy": 1}
    answer = api.post(f"{GROUPS}/tpu/resizeRequests", request, status=400)
    assert "bulk mode supports no resize requests" in answer["error"]["message"]
    api.post(f"{GROUPS}/no-such/resizeRequests", request, status=404)
