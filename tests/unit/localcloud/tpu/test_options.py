"""What nobody here has seen on Google, played either way."""

from __future__ import annotations

import pytest

from localcloud.core.cloud import Cloud
from localcloud.testing import Client, machine

PROJECT = "projects/tpu-stack-local"
V2 = f"tpu.googleapis.com/v2/{PROJECT}/locations"
COMPUTE = f"compute.googleapis.com/compute/v1/{PROJECT}"
AI = "us-central1-ai1a"
V6E = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("tpu.googleapis.com", "compute.googleapis.com")


def test_an_ai_zone_is_hidden_until_it_is_switched_on(tpu: Client, cloud: Cloud) -> None:
    def is_listed() -> tuple[bool, bool]:
        places = [place["locationId"] for place in tpu.get(V2)["locations"]]
        return AI in places, AI in [zone["name"] for zone in tpu.get(f"{COMPUTE}/zones")["items"]]

    queue = f"tpu.googleapis.com/v2alpha1/{PROJECT}/locations/{AI}/queuedResources"
    assert is_listed() == (False, False)
    refused = [
        tpu.get(f"{V2}/{AI}/acceleratorTypes", status=403),
        tpu.get(f"{V2}/{AI}/nodes/t", status=403),
        tpu.get(f"{queue}/q", status=403),
        tpu.post(f"{V2}/{AI}/nodes", V6E, nodeId="t", status=403),
        tpu.post(queue, {}, queuedResourceId="q", status=403),
    ]
    said = f"Location {AI} is not found or access is unauthorized."
    assert [answer["error"]["message"] for answer in refused] == [said] * 5
    cloud.store.put("setting", "ai-zones", {"on": True})
    assert is_listed() == (True, True)
    tpu.post(f"{V2}/{AI}/nodes", V6E, nodeId="t")
    assert tpu.get(f"{V2}/{AI}/nodes/t")["state"] == "READY"


def test_an_ai_zone_has_no_usual_machine_types(tpu: Client, cloud: Cloud) -> None:
    cloud.store.put("setting", "ai-zones", {"on": True})
    types = tpu.get(f"{COMPUTE}/zones/{AI}/machineTypes")["items"]
    assert {each["name"] for each in types} == {"tpu7x-standard-4t"}
    tpu.get(f"{COMPUTE}/zones/{AI}/machineTypes/n1-standard-2", status=404)
    tpu.post(f"{COMPUTE}/zones/{AI}/instances", machine(AI, name="vm"), status=404)


def test_a_generation_may_be_sold_out_everywhere(tpu: Client, cloud: Cloud) -> None:
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
    cloud.store.put("setting", "stockout", {"*": ["v2-8"]})
    for zone in ("us-central1-b", "europe-west4-a"):
        error = tpu.post(f"{V2}/{zone}/nodes", body, nodeId="t")["error"]
        assert f'There is no more capacity in the zone "{zone}"' in error["message"]
    tpu.post(f"{V2}/us-central1-b/nodes", V6E, nodeId="t")
