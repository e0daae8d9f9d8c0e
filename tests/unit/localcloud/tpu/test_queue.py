"""Queued resources: waiting, provisioning, being preempted, and what keeps them from deletion."""

from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core.call import Json
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud, Latency
from localcloud.services.tpu import nodes
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines

PARENT = "projects/tpu-stack-local/locations/us-central1-b"
V2 = f"tpu.googleapis.com/v2/{PARENT}"
ALPHA = f"tpu.googleapis.com/v2alpha1/{PARENT}"

VM: Json = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
NAME = f"{PARENT}/queuedResources/q"


def request(**more: object) -> Json:
    spec = {"parent": PARENT, "nodeId": "t", "node": VM}
    return {"tpu": {"nodeSpec": [spec]}, **more}


def state(tpu: Client) -> str:
    return str(tpu.get(f"{ALPHA}/queuedResources/q")["state"]["state"])


def queue(tpu: Client, body: Json | None = None, *, status: int = 200) -> Json:
    return tpu.post(
        f"{ALPHA}/queuedResources", body or request(), queuedResourceId="q", status=status
    )


def test_a_request_with_room_becomes_active_with_its_node(
    tpu: Client, machines: FakeMachines
) -> None:
    assert queue(tpu)["done"] is True
    assert state(tpu) == "ACTIVE"
    node = tpu.get(f"{ALPHA}/nodes/t")
    assert (node["state"], node["queuedResource"]) == ("READY", NAME)
    assert machines.running(f"{PARENT}/nodes/t/hosts/0")


def test_it_reads_back_as_it_was_sent(tpu: Client) -> None:
    body = request(spot={})
    queue(tpu, body)
    shown = tpu.get(f"{ALPHA}/queuedResources/q")
    assert shown["tpu"] == body["tpu"]
    assert shown["spot"] == {}
    assert tpu.get(f"{V2}/queuedResources/q")["name"] == NAME


def test_an_active_one_is_deleted_only_by_force_or_after_its_nodes(tpu: Client) -> None:
    queue(tpu)
    answer = tpu.delete(f"{ALPHA}/queuedResources/q", status=400)
    assert answer["error"]["status"] == "FAILED_PRECONDITION"
    assert "ACTIVE" in answer["error"]["message"]
    assert f"{PARENT}/nodes/t" in answer["error"]["message"]
    tpu.delete(f"{ALPHA}/nodes/t")
    assert state(tpu) == "SUSPENDED"
    tpu.delete(f"{ALPHA}/queuedResources/q")
    tpu.get(f"{ALPHA}/queuedResources/q", status=404)
    queue(tpu)
    tpu.delete(f"{ALPHA}/queuedResources/q", force="true")
    tpu.get(f"{ALPHA}/nodes/t", status=404)


def test_a_preempted_one_is_suspended_and_holds_its_quota(tpu: Client, cloud: Cloud) -> None:
    metric = "TPUV2sPreemptiblePerProjectPerZoneForTPUAPI"
    cloud.store.put("setting", "quota", {metric: 8})
    queue(tpu, request(spot={}))
    nodes.preempt(cloud, f"{PARENT}/nodes/t")
    assert state(tpu) == "SUSPENDED"
    assert tpu.get(f"{ALPHA}/nodes/t")["state"] == "PREEMPTED"
    tpu.delete(f"{ALPHA}/nodes/t")
    spot = VM | {"schedulingConfig": {"spot": True}}
    tpu.post(f"{ALPHA}/nodes", spot, nodeId="other", status=429)
    tpu.delete(f"{ALPHA}/queuedResources/q")
    tpu.post(f"{ALPHA}/nodes", spot, nodeId="other")


def test_several_slices_are_nodes_of_one_request(tpu: Client) -> None:
    slices = {"nodeCount": 2, "nodeIdPrefix": "s"}
    spec = {"parent": PARENT, "multiNodeParams": slices, "node": VM}
    queue(tpu, {"tpu": {"nodeSpec": [spec]}})
    listed = tpu.get(f"{ALPHA}/nodes")["nodes"]
    assert [node["name"].rpartition("/")[2] for node in listed] == ["s-0", "s-1"]
    assert all(node["multisliceNode"] for node in listed)
    for name in ("s-0", "s-1"):
        labels = {"labels": {"team": "audio"}}
        changed = tpu.patch(f"{ALPHA}/nodes/{name}", labels, updateMask="labels")
        assert changed["response"]["labels"] == {"team": "audio"}
    nodes_before = len(listed)
    tpu.delete(f"{ALPHA}/nodes/s-0")
    assert (state(tpu), nodes_before) == ("ACTIVE", 2)


def test_a_request_waits_while_the_zone_has_no_room(tpu: Client, cloud: Cloud) -> None:
    cloud.store.put("setting", "stockout", {"us-central1-b": ["*"]})
    queue(tpu)
    cloud.clock.sleep(30)
    assert state(tpu) == "ACCEPTED"
    tpu.get(f"{ALPHA}/nodes/t", status=404)
    cloud.store.delete("setting", "stockout")
    cloud.clock.sleep(2)
    assert state(tpu) == "ACTIVE"


def test_a_request_fails_when_its_interval_ends(tpu: Client, cloud: Cloud) -> None:
    cloud.store.put("setting", "stockout", {"us-central1-b": ["v2-8"]})
    queue(tpu, request(queueingPolicy={"validUntilDuration": "600s"}))
    cloud.clock.sleep(599)
    assert state(tpu) == "ACCEPTED"
    cloud.clock.sleep(2)
    assert state(tpu) == "FAILED"
    tpu.delete(f"{ALPHA}/queuedResources/q")


@pytest.mark.parametrize(
    "policy",
    [
        {"validAfterDuration": "60s"},
        {"validAfterTime": "2035-01-01T00:00:00Z"},
        {"validInterval": {"endTime": "2035-01-01T00:00:00Z"}},
    ],
)
def test_a_request_that_is_to_wait_for_its_time_is_refused_by_name(
    tpu: Client, policy: Json
) -> None:
    answer = queue(tpu, request(queueingPolicy=policy), status=501)
    assert f"queueingPolicy.{next(iter(policy))}" in answer["error"]["message"]


def test_without_reserved_capacity_a_reserved_request_fails(tpu: Client, cloud: Cloud) -> None:
    cloud.store.put("setting", "reservations", {})
    queue(tpu, request(guaranteed={"reserved": True}))
    shown = tpu.get(f"{ALPHA}/queuedResources/q")["state"]
    assert shown["state"] == "FAILED"
    assert shown["failedData"]["error"]["code"] == 9
    assert "Insufficient reserved capacity" in shown["failedData"]["error"]["message"]
    tpu.get(f"{ALPHA}/nodes/t", status=404)


def test_a_request_keeps_waiting_after_a_restart(
    local_cloud: LocalCloud, tpu: Client, machines: FakeMachines, clock: VirtualClock
) -> None:
    local_cloud.cloud.store.put("setting", "stockout", {"us-central1-b": ["*"]})
    queue(tpu)
    local_cloud.stop()
    later = VirtualClock(clock.now() + 60)
    again = LocalCloud(local_cloud.cloud.home, clock=later)
    again.cloud.machines = machines
    again.start()
    again.cloud.store.delete("setting", "stockout")
    later.advance(2)
    assert state(Client(again)) == "ACTIVE"
    again.stop()


def flex(seconds: object = "7200s", *, type_: str = "v5litepod-4", **more: object) -> Json:
    body = request(provisioningModel="FLEX_START", runDuration={"maxRunDuration": seconds}, **more)
    body["tpu"]["nodeSpec"][0]["node"] = {**VM, "acceleratorType": type_}
    body["tpu"]["nodeSpec"][0]["node"]["runtimeVersion"] = "v2-alpha-tpuv5-lite"
    body["tpu"]["nodeSpec"][0]["parent"] = FLEX_PARENT
    return body


FLEX_PARENT = "projects/tpu-stack-local/locations/us-west4-a"
FLEX = f"tpu.googleapis.com/v2alpha1/{FLEX_PARENT}"


def test_a_flex_start_request_is_deleted_when_its_duration_ends(
    local_cloud: LocalCloud, tpu: Client, clock: VirtualClock, machines: FakeMachines
) -> None:
    tpu.post(f"{FLEX}/queuedResources", flex(), queuedResourceId="q")
    shown = tpu.get(f"{FLEX}/queuedResources/q")
    assert (shown["provisioningModel"], shown["state"]["state"]) == ("FLEX_START", "ACTIVE")
    assert shown["runDuration"] == {"maxRunDuration": "7200s"}
    clock.advance(7100)
    # The emulator keeps the time over a restart.
    local_cloud.stop()
    later = VirtualClock(clock.now())
    again = LocalCloud(local_cloud.cloud.home, clock=later)
    again.cloud.machines = machines
    again.start()
    client = Client(again)
    assert client.get(f"{FLEX}/nodes/t")["state"] == "READY"
    later.advance(101)
    client.get(f"{FLEX}/nodes/t", status=404)
    assert client.get(f"{FLEX}/queuedResources/q")["state"]["state"] == "SUSPENDED"
    again.stop()


def test_a_flex_start_request_counts_against_preemptible_quota(tpu: Client, cloud: Cloud) -> None:
    metric = "TPUV5sPreemptibleLitepodServingPerProjectPerZoneForTPUAPI"
    cloud.store.put("setting", "quota", {metric: 2})
    answer = tpu.post(f"{FLEX}/queuedResources", flex(), queuedResourceId="q", status=429)
    assert metric in answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (flex("604801s"), "at most 604800s"),
        (flex("0s"), "more than 0s"),
        (
            flex(type_="v2-8"),
            "FLEX_START provisioning model is not supported for accelerator type "
            '"v2-8" in location "us-central1-b"',
        ),
        (flex(spot={}), "FLEX_START and spot"),
        ({**flex(), "provisioningModel": "STANDARD"}, "only for provisioning_model FLEX_START"),
        (request(provisioningModel="RESERVATION_BOUND"), "reservation_name is required"),
    ],
)
def test_flex_start_is_refused_where_google_does_not_offer_it(
    tpu: Client, body: Json, said: str
) -> None:
    parent = body["tpu"]["nodeSpec"][0]["parent"]
    if body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == "v2-8":
        parent = body["tpu"]["nodeSpec"][0]["parent"] = PARENT
        body["tpu"]["nodeSpec"][0]["node"]["runtimeVersion"] = VM["runtimeVersion"]
    url = f"tpu.googleapis.com/v2alpha1/{parent}/queuedResources"
    answer = tpu.post(url, body, queuedResourceId="q", status=400)
    assert said in answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tpu": {}}, "tpu.node_spec"),
        (request(spot={}, guaranteed={}), "spot and guaranteed"),
        (request(queueingPolicy={"validUntilDuration": "1h"}), "1h"),
        (request(queueingPolicy={"validUntilTime": "2001-01-01T00:00:00Z"}), "interval"),
        ({"tpu": {"nodeSpec": [{"parent": PARENT, "node": VM}]}}, "node_id"),
        (
            {"tpu": {"nodeSpec": [{"parent": "projects/x", "nodeId": "t", "node": VM}]}},
            "projects/x",
        ),
    ],
)
def test_a_wrong_request_is_refused(tpu: Client, body: Json, said: str) -> None:
    answer = queue(tpu, body, status=400)
    assert said in answer["error"]["message"]
    assert tpu.get(f"{ALPHA}/queuedResources") == {}


class TestWithRealLatencies:
    @pytest.fixture
    def latency(self) -> Latency:
        return "real"

    def test_it_goes_through_all_states(self, tpu: Client, cloud: Cloud) -> None:
        assert queue(tpu)["done"] is True
        assert state(tpu) == "PROVISIONING"
        cloud.clock.sleep(cloud.seconds("queue.provision"))
        assert tpu.get(f"{ALPHA}/nodes/t")["state"] == "CREATING"
        cloud.clock.sleep(cloud.seconds("tpu.create"))
        assert state(tpu) == "ACTIVE"

    def test_a_node_preempted_while_created_suspends_it(self, tpu: Client, cloud: Cloud) -> None:
        queue(tpu, request(spot={}))
        cloud.clock.sleep(cloud.seconds("queue.provision"))
        nodes.preempt(cloud, f"{PARENT}/nodes/t")
        cloud.clock.sleep(cloud.seconds("tpu.create"))
        assert state(tpu) == "SUSPENDED"
        assert tpu.get(f"{ALPHA}/nodes/t")["state"] == "PREEMPTED"
