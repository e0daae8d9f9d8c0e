"""Networks, subnetworks, firewall rules, routers."""

from __future__ import annotations

import pytest

from localcloud.core.cloud import Cloud, Latency
from localcloud.testing import Client

HOST = "compute.googleapis.com/compute/beta"
BASE = f"{HOST}/projects/tpu-stack-local"
REGION = f"{BASE}/regions/us-central1"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com",)


@pytest.fixture
def network(api: Client) -> str:
    operation = api.post(f"{BASE}/global/networks", {"name": "net", "autoCreateSubnetworks": False})
    return str(operation["targetLink"])


def subnet(network: str, name: str = "sub", cidr: str = "10.0.0.0/24") -> dict[str, object]:
    return {"name": name, "network": network, "ipCidrRange": cidr}


def test_a_project_begins_with_the_default_network_and_its_rules(api: Client) -> None:
    default = api.get(f"{BASE}/global/networks/default")
    assert default["autoCreateSubnetworks"] is True
    ranged = api.get(f"{REGION}/subnetworks/default")
    assert ranged["ipCidrRange"] == "10.128.0.0/20"
    assert ranged["network"] == default["selfLink"]
    assert default["selfLink"].startswith("https://www.googleapis.com/compute/beta/projects/")
    rules = {rule["name"] for rule in api.get(f"{BASE}/global/firewalls")["items"]}
    assert rules == {
        "default-allow-icmp",
        "default-allow-internal",
        "default-allow-rdp",
        "default-allow-ssh",
    }


def test_an_insert_is_done_in_its_first_response(api: Client) -> None:
    operation = api.post(f"{BASE}/global/networks", {"name": "net"})
    assert operation["status"] == "DONE"
    assert operation["id"].isdigit()
    polled = api.get(f"{BASE}/global/operations/{operation['name']}")
    assert polled == operation


def test_v1_answers_with_v1_links(api: Client, network: str) -> None:
    found = api.get(
        "compute.googleapis.com/compute/v1/projects/tpu-stack-local/global/networks/net"
    )
    assert found["selfLink"] == network.replace("/beta/", "/v1/")


def test_an_overlapping_subnetwork_is_refused(api: Client, network: str) -> None:
    api.post(f"{REGION}/subnetworks", subnet(network))
    overlapping = subnet(network, "other", "10.0.0.128/25")
    answer = api.post(f"{BASE}/regions/us-east1/subnetworks", overlapping, status=400)
    assert "10.0.0.128/25 conflicts with existing subnetwork 'sub'" in answer["error"]["message"]


@pytest.mark.parametrize("cidr", ["10.0.0.0/30", "10.0.0.1/24", "300.0.0.0/24", "10.0.0.0"])
def test_a_malformed_range_is_refused(api: Client, network: str, cidr: str) -> None:
    answer = api.post(f"{REGION}/subnetworks", subnet(network, cidr=cidr), status=400)
    assert cidr in answer["error"]["message"]


def test_a_patch_with_a_stale_fingerprint_is_refused(api: Client, network: str) -> None:
    api.post(f"{REGION}/subnetworks", subnet(network))
    found = api.get(f"{REGION}/subnetworks/sub")
    change = {"enableFlowLogs": True, "fingerprint": found["fingerprint"]}
    api.patch(f"{REGION}/subnetworks/sub", change)
    assert api.get(f"{REGION}/subnetworks/sub")["enableFlowLogs"] is True
    api.patch(f"{REGION}/subnetworks/sub", change, status=412)


def test_a_range_expands_and_never_shrinks(api: Client, network: str) -> None:
    api.post(f"{REGION}/subnetworks", subnet(network))
    expand = f"{REGION}/subnetworks/sub/expandIpCidrRange"
    api.post(expand, {"ipCidrRange": "10.0.0.0/23"})
    assert api.get(f"{REGION}/subnetworks/sub")["ipCidrRange"] == "10.0.0.0/23"
    api.post(expand, {"ipCidrRange": "10.0.0.0/24"}, status=400)


def test_a_network_in_use_stays_until_its_users_are_gone(api: Client, network: str) -> None:
    api.post(f"{REGION}/subnetworks", subnet(network))
    failed = api.delete(f"{BASE}/global/networks/net")["error"]["errors"][0]
    assert failed["code"] == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert "regions/us-central1/subnetworks/sub" in failed["message"]
    api.delete(f"{REGION}/subnetworks/sub")
    api.delete(f"{BASE}/global/networks/net")
    api.get(f"{BASE}/global/networks/net", status=404)


def test_deleting_networks_leaves_the_store_as_it_was(api: Client, cloud: Cloud) -> None:
    before = cloud.store.keys("compute")
    api.post(f"{BASE}/global/networks", {"name": "auto"})
    assert len(cloud.store.keys("compute")) > len(before) + 30
    api.delete(f"{BASE}/global/networks/auto")
    assert cloud.store.keys("compute") == before


def test_a_nat_is_part_of_its_router(api: Client, network: str) -> None:
    api.post(f"{REGION}/routers", {"name": "r", "network": network})
    nat = {
        "name": "nat",
        "natIpAllocateOption": "AUTO_ONLY",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
    }
    api.patch(f"{REGION}/routers/r", {"nats": [nat]})
    assert api.get(f"{REGION}/routers/r")["nats"][0]["type"] == "PUBLIC"
    api.patch(f"{REGION}/routers/r", {"nats": []})
    assert (
        "nats" not in api.get(f"{REGION}/routers/r") or not api.get(f"{REGION}/routers/r")["nats"]
    )


def test_a_firewall_rule_gets_googles_defaults(api: Client, network: str) -> None:
    rule = {"name": "fw", "network": network, "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
    api.post(f"{BASE}/global/firewalls", rule)
    found = api.get(f"{BASE}/global/firewalls/fw")
    assert (found["direction"], found["priority"]) == ("INGRESS", 1000)
    assert found["sourceRanges"] == ["0.0.0.0/0"]


def test_labels_change_only_with_the_current_fingerprint(api: Client) -> None:
    disks = f"{BASE}/zones/us-central1-b/disks"
    api.post(disks, {"name": "d", "sizeGb": "10"})
    found = api.get(f"{disks}/d")
    body = {"labels": {"team": "x"}, "labelFingerprint": found["labelFingerprint"]}
    api.post(f"{disks}/d/setLabels", body)
    assert api.get(f"{disks}/d")["labels"] == {"team": "x"}
    api.post(f"{disks}/d/setLabels", body, status=412)


def test_a_name_that_is_taken_or_malformed_is_refused(api: Client, network: str) -> None:
    answer = api.post(f"{BASE}/global/networks", {"name": "net"}, status=409)
    assert answer["error"]["errors"][0]["reason"] == "alreadyExists"
    answer = api.post(f"{BASE}/global/networks", {"name": "Net_1"}, status=400)
    assert "'Net_1'" in answer["error"]["message"]


def test_a_rule_takes_the_networks_permission_too(api: Client, cloud: Cloud) -> None:
    role, policy = "projects/tpu-stack-local/roles/r", "projects/tpu-stack-local"
    binding = {"role": role, "members": ["user:ops@example.com"]}
    current = cloud.store.get("policy", policy) or {}
    cloud.store.put("policy", policy, current | {"bindings": [*current["bindings"], binding]})
    cloud.store.put("role", role, {"includedPermissions": ["compute.firewalls.create"]})
    rule = {"name": "fw", "allowed": [{"IPProtocol": "tcp"}]}
    ops = api.as_member("user:ops@example.com")
    answer = ops.post(f"{BASE}/global/firewalls", rule, status=403)
    assert "compute.networks.updatePolicy" in answer["error"]["message"]
    both = ["compute.firewalls.create", "compute.networks.updatePolicy"]
    cloud.store.put("role", role, {"includedPermissions": both})
    ops.post(f"{BASE}/global/firewalls", rule)


class TestWithRealLatencies:
    @pytest.fixture
    def latency(self) -> Latency:
        return "real"

    def test_an_operation_runs_until_its_time_is_over(self, api: Client, cloud: Cloud) -> None:
        operation = api.post(f"{BASE}/global/networks", {"name": "slow"})
        assert operation["status"] == "RUNNING"
        cloud.clock.sleep(cloud.seconds("network.create"))
        url = f"{BASE}/global/operations/{operation['name']}"
        assert api.get(url)["status"] == "DONE"

    def test_waiting_ends_when_the_operation_does(self, api: Client) -> None:
        operation = api.post(f"{BASE}/global/networks", {"name": "slow"})
        waited = api.post(f"{BASE}/global/operations/{operation['name']}/wait")
        assert waited["status"] == "DONE"
