"""TPU VMs: create, look at, change, stop, preempt, delete."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from localcloud.core.call import Json
from localcloud.core.cloud import Cloud, Latency
from localcloud.services.org_policy import ORG_POLICY
from localcloud.services.tpu import hosts, nodes
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines
from tpu_training.errors import find_known_error

PARENT = "projects/tpu-stack-local/locations/us-central1-b"
V1 = f"tpu.googleapis.com/v1/{PARENT}"
V2 = f"tpu.googleapis.com/v2/{PARENT}"
ALPHA = f"tpu.googleapis.com/v2alpha1/{PARENT}"

VM: Json = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}


def test_a_new_vm_is_ready_and_its_endpoint_answers(tpu: Client, machines: FakeMachines) -> None:
    operation = tpu.post(f"{ALPHA}/nodes", VM, nodeId="t")
    assert operation["done"] is True
    assert operation["response"]["@type"].endswith("v2alpha1.Node")
    node = tpu.get(f"{ALPHA}/nodes/t")
    assert (node["state"], node["health"]) == ("READY", "HEALTHY")
    assert node["networkEndpoints"][0]["ipAddress"] == "127.0.0.1"
    assert machines.running(f"{PARENT}/nodes/t/hosts/0")


def test_a_slice_has_an_endpoint_for_each_host_in_worker_order(
    tpu: Client, machines: FakeMachines
) -> None:
    europe = ALPHA.replace("us-central1-b", "europe-west4-a")
    tpu.post(f"{europe}/nodes", VM | {"acceleratorType": "v2-32"}, nodeId="t")
    ports = [e["port"] for e in tpu.get(f"{europe}/nodes/t")["networkEndpoints"]]
    assert len(set(ports)) == 4
    hosts = [machines.specs[key] for key in sorted(machines.specs)]
    assert [host.attributes["agent-worker-number"] for host in hosts] == ["0", "1", "2", "3"]
    assert [
        f"--port={port}" in host.daemons["tpu-runtime"]
        for host, port in zip(hosts, ports, strict=True)
    ] == [True] * 4


def test_two_tpus_have_ports_of_their_own(tpu: Client) -> None:
    for name in ("a", "b"):
        tpu.post(f"{ALPHA}/nodes", VM, nodeId=name)
    listed = tpu.get(f"{ALPHA}/nodes")["nodes"]
    assert len({node["networkEndpoints"][0]["port"] for node in listed}) == 2


def test_a_policy_on_public_addresses_refuses_those_of_tpu_vms(tpu: Client, cloud: Cloud) -> None:
    key = "projects/tpu-stack-local/policies/compute.vmExternalIpAccess"
    cloud.store.put(ORG_POLICY, key, {"spec": {"rules": [{"denyAll": True}]}})
    public = VM | {"networkConfig": {"enableExternalIps": True}}
    refusal = tpu.post(f"{V2}/nodes", public, nodeId="t", status=400)["error"]
    assert refusal["status"] == "FAILED_PRECONDITION"
    found = find_known_error(refusal["message"])
    assert found is not None
    assert found.id == "policy-external-ip"
    spec = [{"parent": PARENT, "nodeId": "q", "node": public}]
    body = {"tpu": {"nodeSpec": spec}}
    tpu.post(f"{ALPHA}/queuedResources", body, queuedResourceId="q", status=400)
    tpu.post(f"{V2}/nodes", VM, nodeId="t")


def test_version_1_shows_the_same_node(tpu: Client) -> None:
    tpu.post(f"{V2}/nodes", VM, nodeId="t")
    seen = tpu.get(f"{V1}/nodes/t")
    assert seen["state"] == "READY"
    assert seen["networkEndpoints"] == tpu.get(f"{V2}/nodes/t")["networkEndpoints"]
    assert seen["port"] == str(seen["networkEndpoints"][0]["port"])


def test_a_runtime_without_pod_leaves_serving_to_the_startup_script(
    tpu: Client, machines: FakeMachines
) -> None:
    body = VM | {"runtimeVersion": "tpu-vm-tf-2.17.0-pjrt", "metadata": {"startup-script": "x"}}
    tpu.post(f"{ALPHA}/nodes", body, nodeId="t")
    (host,) = machines.specs.values()
    assert host.daemons == {}
    assert host.attributes["startup-script"] == "x"
    port = tpu.get(f"{ALPHA}/nodes/t")["networkEndpoints"][0]["port"]
    assert f"--port={port}" in host.programs["start_grpc_tpu_worker"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"acceleratorType": "v4-8"}, '"v4-8" for zone "us-central1-b"'),
        ({"runtimeVersion": "tpu-vm-tf-9.9.9"}, '"tpu-vm-tf-9.9.9"'),
        ({"runtimeVersion": "v2-alpha-tpuv5"}, "does not support v2-8"),
        ({"labels": {"Upper": "x"}}, '"Upper"'),
        ({"schedulingConfig": {"spot": True, "reserved": True}}, "spot and reserved"),
        ({"serviceAccount": {"email": "nobody@example.com"}}, "nobody@example.com"),
    ],
)
def test_a_wrong_vm_is_refused_and_nothing_remains(tpu: Client, change: Json, said: str) -> None:
    answer = tpu.post(f"{ALPHA}/nodes", VM | change, nodeId="t", status=400)
    assert said in answer["error"]["message"]
    assert tpu.get(f"{ALPHA}/nodes") == {}


@pytest.mark.parametrize(
    ("config", "missing"),
    [({"network": "nonet"}, "global/networks/nonet"), ({"subnetwork": "nosub"}, "nosub")],
)
def test_a_network_that_does_not_exist_is_refused(tpu: Client, config: Json, missing: str) -> None:
    answer = tpu.post(f"{ALPHA}/nodes", VM | {"networkConfig": config}, nodeId="t", status=404)
    assert missing in answer["error"]["message"]


def test_a_vm_is_shown_in_full_but_for_what_is_false(tpu: Client) -> None:
    network = {"network": "default", "subnetwork": "default", "enableExternalIps": False}
    tiers = {"preemptible": False, "reserved": False, "spot": False}
    operation = tpu.post(
        f"{V2}/nodes", VM | {"networkConfig": network, "schedulingConfig": tiers}, nodeId="t"
    )
    assert "health" not in operation["response"]
    node = tpu.get(f"{V2}/nodes/t")
    assert node["networkConfig"] == {
        "network": "projects/tpu-stack-local/global/networks/default",
        "subnetwork": "projects/tpu-stack-local/regions/us-central1/subnetworks/default",
    }
    assert (node["schedulingConfig"], node["shieldedInstanceConfig"]) == ({}, {})
    assert "multisliceNode" not in node
    assert len(node["serviceAccount"]["scope"]) == 6
    own = {"serviceAccount": {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}}
    tpu.post(f"{V2}/nodes", VM | own, nodeId="own")
    added = tpu.get(f"{V2}/nodes/own")["serviceAccount"]["scope"]
    assert [scope.rpartition("/")[2] for scope in added] == ["cloud-platform", "pubsub"]
    assert IPv4Network(node["cidrBlock"]).subnet_of(IPv4Network("10.128.0.0/20"))


def test_a_runtime_that_googles_lists_leave_out_is_taken(tpu: Client) -> None:
    body = VM | {"runtimeVersion": "tpu-vm-cos-stable"}
    tpu.post(f"{V2}/nodes", body, nodeId="t")
    assert tpu.get(f"{V2}/nodes/t")["state"] == "READY"


def test_a_customers_key_of_the_boot_disk_is_refused(tpu: Client) -> None:
    body = VM | {"bootDiskConfig": {"customerEncryptionKey": {"kmsKeyName": "k"}}}
    answer = tpu.post(f"{ALPHA}/nodes", body, nodeId="t", status=501)
    assert "bootDiskConfig.customerEncryptionKey" in answer["error"]["message"]


def test_a_subnetwork_with_a_tpu_in_it_cannot_be_deleted(tpu: Client) -> None:
    compute = "compute.googleapis.com/compute/v1/projects/tpu-stack-local"
    tpu.post(f"{compute}/global/networks", {"name": "n", "autoCreateSubnetworks": False})
    region = f"{compute}/regions/us-central1/subnetworks"
    tpu.post(region, {"name": "s", "network": "global/networks/n", "ipCidrRange": "10.9.0.0/24"})
    config = {"network": "n", "subnetwork": "s"}
    tpu.post(f"{ALPHA}/nodes", VM | {"networkConfig": config}, nodeId="t")
    answer = tpu.delete(f"{region}/s", status=400)
    assert f"{PARENT}/nodes/t" in answer["error"]["message"]
    tpu.delete(f"{ALPHA}/nodes/t")
    tpu.delete(f"{region}/s")


def test_a_zone_without_tpus_is_unknown(tpu: Client) -> None:
    elsewhere = ALPHA.replace("us-central1-b", "us-west2-a")
    answer = tpu.post(f"{elsewhere}/nodes", VM, nodeId="t", status=403)
    assert "Location us-west2-a is not found" in answer["error"]["message"]


def test_a_name_that_is_taken_is_refused(tpu: Client) -> None:
    tpu.post(f"{ALPHA}/nodes", VM, nodeId="t")
    tpu.post(f"{ALPHA}/nodes", VM, nodeId="t", status=409)
    tpu.post(f"{ALPHA}/nodes", VM, nodeId="T_1", status=400)


def test_a_patch_changes_what_its_mask_names(tpu: Client, machines: FakeMachines) -> None:
    tpu.post(f"{ALPHA}/nodes", VM | {"labels": {"a": "b"}, "tags": ["x"]}, nodeId="t")
    body = {"labels": {"c": "d"}, "tags": ["ignored"], "metadata": {"k": "v"}}
    tpu.patch(f"{ALPHA}/nodes/t", body, updateMask="labels,metadata")
    node = tpu.get(f"{ALPHA}/nodes/t")
    assert (node["labels"], node["tags"], node["metadata"]) == ({"c": "d"}, ["x"], {"k": "v"})
    (host,) = machines.specs.values()
    assert host.attributes["k"] == "v"
    answer = tpu.patch(f"{ALPHA}/nodes/t", {}, updateMask="acceleratorType", status=400)
    assert "acceleratorType" in answer["error"]["message"]


def test_stopping_ends_the_host_and_starting_brings_it_back_at_its_port(
    tpu: Client, machines: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    tpu.post(f"{ALPHA}/nodes", VM, nodeId="t")
    port = tpu.get(f"{ALPHA}/nodes/t")["networkEndpoints"][0]["port"]
    # Machines of other tests, which really run, may take it from here on.
    monkeypatch.setattr(hosts, "_free", lambda port: True)
    tpu.post(f"{ALPHA}/nodes/t:stop")
    stopped = tpu.get(f"{ALPHA}/nodes/t")
    assert stopped["state"] == "STOPPED"
    assert "health" not in stopped
    assert not machines.running(f"{PARENT}/nodes/t/hosts/0")
    answer = tpu.post(f"{ALPHA}/nodes/t:stop", status=400)
    assert "stop is not supported while in state STOPPED" in answer["error"]["message"]
    tpu.post(f"{ALPHA}/nodes/t:start")
    started = tpu.get(f"{ALPHA}/nodes/t")
    assert started["state"] == "READY"
    assert started["networkEndpoints"][0]["port"] == port


def test_a_preempted_node_stays_until_it_is_deleted(
    tpu: Client, cloud: Cloud, machines: FakeMachines
) -> None:
    tpu.post(f"{ALPHA}/nodes", VM, nodeId="t")
    nodes.preempt(cloud, f"{PARENT}/nodes/t")
    assert machines.preempted == [f"{PARENT}/nodes/t/hosts/0"]
    assert tpu.get(f"{ALPHA}/nodes/t")["state"] == "PREEMPTED"
    tpu.post(f"{ALPHA}/nodes", VM, nodeId="t", status=409)
    tpu.post(f"{ALPHA}/nodes/t:start", status=400)
    tpu.delete(f"{ALPHA}/nodes/t")
    tpu.get(f"{ALPHA}/nodes/t", status=404)
    tpu.post(f"{ALPHA}/nodes", VM, nodeId="t")


def test_a_stock_out_fails_the_operation_and_leaves_nothing(tpu: Client, cloud: Cloud) -> None:
    cloud.store.put("setting", "stockout", {"us-central1-b": ["v2-8"]})
    operation = tpu.post(f"{ALPHA}/nodes", VM, nodeId="t")
    assert operation["error"]["code"] == 8
    assert 'There is no more capacity in the zone "us-central1-b"' in operation["error"]["message"]
    tpu.get(f"{ALPHA}/nodes/t", status=404)


def test_a_quota_is_named_and_also_held_by_preempted_nodes(tpu: Client, cloud: Cloud) -> None:
    metric = "TPUV2sPreemptiblePerProjectPerZoneForTPUAPI"
    cloud.store.put("setting", "quota", {metric: 8})
    spot = VM | {"schedulingConfig": {"spot": True}}
    tpu.post(f"{ALPHA}/nodes", spot, nodeId="a")
    nodes.preempt(cloud, f"{PARENT}/nodes/a")
    answer = tpu.post(f"{ALPHA}/nodes", spot, nodeId="b", status=429)
    assert answer["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert f"Quota limit '{metric}' has been exceeded. Limit: 8" in answer["error"]["message"]
    tpu.post(f"{ALPHA}/nodes", VM, nodeId="on-demand")
    tpu.delete(f"{ALPHA}/nodes/a")
    tpu.post(f"{ALPHA}/nodes", spot, nodeId="b")


def test_a_caller_needs_the_permission_and_the_account(tpu: Client, cloud: Cloud) -> None:
    tpu.as_member("user:nobody@example.com").post(f"{ALPHA}/nodes", VM, nodeId="t", status=403)
    member = "user:ops@example.com"
    policy = cloud.store.get("policy", "projects/tpu-stack-local") or {}
    role = "projects/tpu-stack-local/roles/tpus"
    cloud.store.put("role", role, {"includedPermissions": ["tpu.nodes.create"]})
    policy["bindings"].append({"role": role, "members": [member]})
    cloud.store.put("policy", "projects/tpu-stack-local", policy)
    answer = tpu.as_member(member).post(f"{ALPHA}/nodes", VM, nodeId="t", status=403)
    assert "iam.serviceAccounts.actAs" in answer["error"]["message"]


class TestWithRealLatencies:
    @pytest.fixture
    def latency(self) -> Latency:
        return "real"

    def test_a_vm_preempted_while_created_fails_its_operation(
        self, tpu: Client, cloud: Cloud
    ) -> None:
        operation = tpu.post(f"{ALPHA}/nodes", VM, nodeId="t")
        assert operation["done"] is False
        assert tpu.get(f"{ALPHA}/nodes/t")["state"] == "CREATING"
        nodes.preempt(cloud, f"{PARENT}/nodes/t")
        cloud.clock.sleep(cloud.seconds("tpu.create"))
        done = tpu.get(f"tpu.googleapis.com/v2alpha1/{operation['name']}")
        assert done["error"]["code"] == 3
        assert "not supported while in state PREEMPTED" in done["error"]["message"]
        assert tpu.get(f"{ALPHA}/nodes/t")["state"] == "PREEMPTED"


def test_a_subnetwork_has_an_address_for_every_host_or_refuses(tpu: Client) -> None:
    compute = "compute.googleapis.com/compute/v1/projects/tpu-stack-local"
    tpu.post(f"{compute}/global/networks", {"name": "n", "autoCreateSubnetworks": False})
    region = f"{compute}/regions/europe-west4/subnetworks"
    tpu.post(region, {"name": "s", "network": "global/networks/n", "ipCidrRange": "10.9.0.0/29"})
    europe = ALPHA.replace("us-central1-b", "europe-west4-a")
    slice_ = VM | {"acceleratorType": "v2-32", "networkConfig": {"network": "n", "subnetwork": "s"}}
    tpu.post(f"{europe}/nodes", slice_, nodeId="a")
    answer = tpu.post(f"{europe}/nodes", slice_, nodeId="b", status=400)
    assert "4 addresses are wanted, 0 of 4 are free" in answer["error"]["message"]


def test_what_the_guests_wrote_is_read_through_the_tpu_api(
    tpu: Client, machines: FakeMachines
) -> None:
    allowed = {"metadata": {"enable-guest-attributes": "TRUE"}}
    tpu.post(f"{V2}/nodes", VM | allowed, nodeId="t")
    found = tpu.post(f"{V2}/nodes/t:getGuestAttributes", {"queryPath": "hostkeys/"})
    item = {"namespace": "hostkeys", "key": "ssh-ed25519", "value": "key of 0"}
    answer = {"queryPath": "hostkeys/", "queryValue": {"items": [item]}}
    assert found == {"guestAttributes": [answer]}
    found = tpu.post(f"{V2}/nodes/t:getGuestAttributes", {"queryPath": "other/"})
    assert found["guestAttributes"][0]["queryValue"] == {"items": []}


def test_guest_attributes_need_the_switch_a_known_worker_and_a_reader(tpu: Client) -> None:
    tpu.post(f"{V2}/nodes", VM, nodeId="off")
    tpu.post(f"{V2}/nodes/off:getGuestAttributes", {}, status=403)
    tpu.post(f"{V2}/nodes/gone:getGuestAttributes", {}, status=404)
    allowed = {"metadata": {"enable-guest-attributes": "TRUE"}}
    tpu.post(f"{V2}/nodes", VM | allowed, nodeId="on")
    refused = tpu.post(f"{V2}/nodes/on:getGuestAttributes", {"workerIds": ["1"]}, status=400)
    assert "the node has 1 workers" in refused["error"]["message"]
    stranger = tpu.as_member("user:stranger@example.com")
    stranger.post(f"{V2}/nodes/on:getGuestAttributes", {}, status=403)
