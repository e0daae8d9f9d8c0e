"""Machines of Compute Engine with a TPU: where they are, what is refused, when they end."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import SETTING, Cloud
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines

PROJECT = "compute.googleapis.com/compute/v1/projects/tpu-stack-local"
ZONE = "us-east5-a"
INSTANCES = f"{PROJECT}/zones/{ZONE}/instances"
IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
STAYS = {"onHostMaintenance": "TERMINATE"}
FLEX = {
    **STAYS,
    "provisioningModel": "FLEX_START",
    "automaticRestart": False,
    "instanceTerminationAction": "DELETE",
    "maxRunDuration": {"seconds": "7200"},
}
BOUND = {
    **STAYS,
    "provisioningModel": "RESERVATION_BOUND",
    "instanceTerminationAction": "DELETE",
}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com",)


def host(kind: str = "ct6e-standard-4t", disk: str = "hyperdisk-balanced", **fields: Any) -> Any:
    image = f"projects/ubuntu-os-accelerator-images/global/images/family/{IMAGE}"
    params = {
        "sourceImage": image,
        "diskSizeGb": "200",
        "diskType": f"zones/{ZONE}/diskTypes/{disk}",
    }
    disks = [{"boot": True, "autoDelete": True, "initializeParams": params}]
    own = {"name": "tpu", "scheduling": STAYS, **fields}
    return machine(ZONE, machineType=f"zones/{ZONE}/machineTypes/{kind}", disks=disks, **own)


def test_a_machine_with_a_tpu_runs_and_its_guest_reads_which_tpu_it_is(
    api: Client, machines: FakeMachines
) -> None:
    api.post(INSTANCES, host(metadata={"items": [{"key": "mine", "value": "1"}]}))
    assert api.get(f"{INSTANCES}/tpu")["status"] == "RUNNING"
    (spec,) = machines.specs.values()
    told = spec.attributes
    assert (told["accelerator-type"], told["agent-worker-number"]) == ("v6e-4", "0")
    assert "TPU_TOPOLOGY: '2x2'\n" in told["tpu-env"]
    # A bare name, in which JAX does not find the address that those of TPU VMs have.
    assert told["worker-network-endpoints"] == "tpu"
    assert told["mine"] == "1"
    # They are the guest's alone: the API shows what was sent.
    items = api.get(f"{INSTANCES}/tpu")["metadata"]["items"]
    assert items == [{"key": "mine", "value": "1"}]


def test_other_machines_read_nothing_of_a_tpu(api: Client, machines: FakeMachines) -> None:
    api.post(INSTANCES, machine(ZONE, name="plain"))
    (spec,) = machines.specs.values()
    assert spec.attributes == {}


@pytest.mark.parametrize(
    ("zone", "has", "lacks"),
    [
        (ZONE, "ct6e-standard-8t", "tpu7x-standard-4t"),
        ("us-central1-c", "tpu7x-standard-4t", "ct5p-hightpu-4t"),
        ("us-west1-a", "n1-standard-2", "ct6e-standard-4t"),
    ],
)
def test_each_zone_lists_its_own_machine_types_with_a_tpu(
    api: Client, zone: str, has: str, lacks: str
) -> None:
    url = f"{PROJECT}/zones/{zone}/machineTypes"
    names = {item["name"] for item in api.get(url, maxResults="500")["items"]}
    assert has in names
    assert lacks not in names
    assert api.get(f"{url}/{has}")["guestCpus"] > 0
    api.get(f"{url}/{lacks}", status=404)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (host("tpu7x-standard-4t"), 404, "machineTypes/tpu7x-standard-4t' was not found"),
        (host("ct5lp-hightpu-4t"), 400, "This user agent is not allowed to use the machine type"),
        (host(disk="pd-balanced"), 400, "[pd-balanced] features are not compatible"),
        (host(scheduling={}), 400, "do not support live migration"),
        (host(scheduling={**FLEX, "maxRunDuration": None}), 400, "10 minutes to 7 days"),
        (
            host(scheduling={**FLEX, "maxRunDuration": {"seconds": "60"}}),
            400,
            "10 minutes to 7 days",
        ),
        (host(scheduling={**FLEX, "instanceTerminationAction": "STOP"}), 400, "need DELETE"),
        (host(scheduling=BOUND), 400, "needs a specific reservation"),
    ],
)
def test_what_google_refuses_leaves_neither_machine_nor_disk(
    api: Client, body: Any, status: int, said: str
) -> None:
    assert said in str(api.post(INSTANCES, body, status=status))
    assert "items" not in api.get(INSTANCES)
    assert "items" not in api.get(f"{PROJECT}/zones/{ZONE}/disks")


def test_a_machine_comes_from_a_reservation_of_its_zone(api: Client, cloud: Cloud) -> None:
    affinity = {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["ours"],
    }
    cloud.store.put("setting", "reservations", {"us-east5-b": ["ct6e-standard-4t"]})
    answer = api.post(INSTANCES, host(reservationAffinity=affinity), status=404)
    assert "reservations/ours' was not found" in str(answer)
    cloud.store.put("setting", "reservations", {ZONE: ["ct6e-standard-4t"]})
    api.post(INSTANCES, host(reservationAffinity=affinity, scheduling=BOUND))


def test_flex_start_deletes_the_machine_when_its_time_is_up(
    api: Client, clock: VirtualClock
) -> None:
    api.post(INSTANCES, host(scheduling=FLEX))
    clock.advance(7100)
    assert api.get(f"{INSTANCES}/tpu")["status"] == "RUNNING"
    clock.advance(200)
    api.get(f"{INSTANCES}/tpu", status=404)
    assert "items" not in api.get(f"{PROJECT}/zones/{ZONE}/disks")


WAIT: dict[str, Any] = {"params": {"requestValidForDuration": {"seconds": "3600"}}}
FULL: dict[str, Any] = {"zones": [ZONE]}


def test_flex_start_waits_for_capacity_and_its_time_runs_from_the_moment_it_comes(
    api: Client, cloud: Cloud, clock: VirtualClock, machines: FakeMachines
) -> None:
    cloud.store.put(SETTING, "compute.stockout", FULL)
    waiting = api.post(INSTANCES, host(scheduling=FLEX, **WAIT))
    assert waiting["status"] == "RUNNING"
    clock.advance(3500)
    assert api.get(f"{INSTANCES}/tpu")["status"] == "PENDING"
    assert not machines.specs
    cloud.store.delete(SETTING, "compute.stockout")
    clock.advance(20)
    assert api.get(f"{INSTANCES}/tpu")["status"] == "RUNNING"
    done = api.get(f"{PROJECT}/zones/{ZONE}/operations/{waiting['name']}")
    assert (done["status"], "error" in done) == ("DONE", False)
    clock.advance(7100)
    assert api.get(f"{INSTANCES}/tpu")["status"] == "RUNNING"
    clock.advance(200)
    api.get(f"{INSTANCES}/tpu", status=404)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("compute.stockout", FULL, "ZONE_RESOURCE_POOL_EXHAUSTED"),
        ("compute.quota", {"PREEMPTIBLE_TPU_V6E": {"us-east5": 3}}, "QUOTA_EXCEEDED"),
    ],
)
def test_flex_start_that_waits_in_vain_fails_when_its_request_ends_and_leaves_nothing(
    api: Client, cloud: Cloud, clock: VirtualClock, name: str, value: Any, code: str
) -> None:
    cloud.store.put(SETTING, name, value)
    waiting = api.post(INSTANCES, host(scheduling=FLEX, **WAIT))
    clock.advance(3590)
    assert api.get(f"{INSTANCES}/tpu")["status"] == "PENDING"
    clock.advance(11)
    done = api.get(f"{PROJECT}/zones/{ZONE}/operations/{waiting['name']}")
    assert done["error"]["errors"][0]["code"] == code
    api.get(f"{INSTANCES}/tpu", status=404)
    assert "items" not in api.get(f"{PROJECT}/zones/{ZONE}/disks")


def test_one_that_waits_holds_no_quota_and_can_be_deleted(
    api: Client, cloud: Cloud, clock: VirtualClock
) -> None:
    cloud.store.put(SETTING, "compute.quota", {"PREEMPTIBLE_TPU_V6E": {"us-east5": 3}})
    api.post(INSTANCES, host(scheduling=FLEX, **WAIT))
    api.post(INSTANCES, host("ct6e-standard-1t", scheduling=FLEX, name="small", **WAIT))
    assert api.get(f"{INSTANCES}/small")["status"] == "RUNNING"
    api.post(f"{INSTANCES}/tpu/stop", status=400)
    api.delete(f"{INSTANCES}/tpu")
    clock.advance(3700)
    assert [each["name"] for each in api.get(INSTANCES)["items"]] == ["small"]


def test_only_flex_start_waits_and_for_90_seconds_to_two_hours(api: Client) -> None:
    for seconds in ("60", "7201"):
        params = {"requestValidForDuration": {"seconds": seconds}}
        answer = api.post(INSTANCES, host(scheduling=FLEX, params=params), status=400)
        assert "90 seconds to 2 hours" in str(answer)
    answer = api.post(INSTANCES, host(**WAIT), status=400)
    assert "Only requests for flex-start wait" in str(answer)
    now = {"requestValidForDuration": {"seconds": "0"}}
    api.post(INSTANCES, host(scheduling=FLEX, params=now))
    assert api.get(f"{INSTANCES}/tpu")["status"] == "RUNNING"


def test_a_machine_that_shall_stop_is_there_after_its_time_and_has_all_of_it_again(
    api: Client, clock: VirtualClock
) -> None:
    ends = {"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "STOP"}
    api.post(INSTANCES, machine(ZONE, name="vm", scheduling=ends))
    clock.advance(3700)
    assert api.get(f"{INSTANCES}/vm")["status"] == "TERMINATED"
    api.post(f"{INSTANCES}/vm/start")
    clock.advance(3500)
    assert api.get(f"{INSTANCES}/vm")["status"] == "RUNNING"
    clock.advance(200)
    assert api.get(f"{INSTANCES}/vm")["status"] == "TERMINATED"


@pytest.mark.parametrize(
    ("scheduling", "metric"),
    [
        (STAYS, "TPUS_PER_TPU_FAMILY"),
        ({**STAYS, "provisioningModel": "SPOT"}, "PREEMPTIBLE_TPU_V6E"),
        (FLEX, "PREEMPTIBLE_TPU_V6E"),
    ],
)
def test_chips_count_against_the_quota_of_how_they_are_bought(
    api: Client, cloud: Cloud, scheduling: dict[str, Any], metric: str
) -> None:
    cloud.store.put(SETTING, "compute.quota", {metric: {"us-east5": 5}})
    api.post(INSTANCES, host(scheduling=scheduling))
    second = api.post(INSTANCES, host(scheduling=scheduling, name="second"))
    (error,) = second["error"]["errors"]
    assert error["code"] == "QUOTA_EXCEEDED"
    # So users saw it on Google.
    assert error["message"].startswith(f"Quota '{metric}' exceeded.  Limit: 5.0")
    api.post(INSTANCES, host("ct6e-standard-1t", scheduling=scheduling, name="small"))
    assert api.get(f"{INSTANCES}/small")["status"] == "RUNNING"
