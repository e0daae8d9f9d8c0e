"""Answers in the form in which Google gives them, and requests that it takes."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest

from localcloud.core import projects
from localcloud.core.call import Json
from localcloud.core.cloud import Cloud, Latency
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines

ROOT = "compute.googleapis.com/compute"
V1 = f"{ROOT}/v1/projects/tpu-stack-local"
BETA = f"{ROOT}/beta/projects/tpu-stack-local"
REGION = f"{V1}/regions/us-central1"
ZONE = f"{BETA}/zones/us-central1-b"
RANGE: Json = {"addressType": "INTERNAL", "purpose": "VPC_PEERING", "network": "global/networks/n"}


@pytest.fixture
def latency() -> Latency:
    return "real"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com",)


@pytest.fixture
def net(api: Client, cloud: Cloud) -> Client:
    """The owner's client, with the network `n` and the subnetwork `s`."""
    api.post(f"{V1}/global/networks", {"name": "n", "autoCreateSubnetworks": False})
    sent = {"name": "s", "network": "global/networks/n", "ipCidrRange": "10.0.0.0/24"}
    api.post(f"{REGION}/subnetworks", sent | {"logConfig": {"enable": False}})
    return api


def done(cloud: Cloud, api: Client, operation: Json) -> Json:
    cloud.clock.advance(60)  # type: ignore[attr-defined]
    return api.get(operation["selfLink"].replace("www.googleapis.com/compute", ROOT))


def test_a_network_shows_its_subnetworks_only_while_it_has_some(net: Client) -> None:
    network = f"{V1}/global/networks/n"
    assert len(net.get(network)["subnetworks"]) == 1
    net.delete(f"{REGION}/subnetworks/s")
    net.local_cloud.cloud.clock.advance(60)  # type: ignore[attr-defined]
    assert "subnetworks" not in net.get(network)


def test_the_deletion_of_a_network_in_use_fails_in_its_operation(net: Client, cloud: Cloud) -> None:
    operation = net.delete(f"{V1}/global/networks/n")
    assert operation["status"] == "RUNNING"
    ended = done(cloud, net, operation)
    (error,) = ended["error"]["errors"]
    assert error["code"] == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert "subnetworks/s'" in error["message"]
    assert (ended["httpErrorStatusCode"], ended["httpErrorMessage"]) == (400, "BAD REQUEST")
    assert net.get(f"{V1}/global/networks/n")["name"] == "n"


@pytest.mark.parametrize("switch", [{"logConfig": {"enable": True}}, {"enableFlowLogs": True}])
def test_the_flow_logs_of_a_subnetwork_are_shown_in_both_places(net: Client, switch: Json) -> None:
    shown = net.get(f"{REGION}/subnetworks/s")
    assert (shown["enableFlowLogs"], shown["logConfig"]) == (False, {"enable": False})
    net.patch(f"{REGION}/subnetworks/s", switch | {"fingerprint": shown["fingerprint"]})
    shown = net.get(f"{REGION}/subnetworks/s")
    assert shown["enableFlowLogs"] is True
    assert shown["logConfig"]["enable"] is True


def test_auto_mode_leaves_out_regions_that_google_does_not_open(api: Client, cloud: Cloud) -> None:
    projects.ensure(cloud, "new-project", owner="user:o@example.com")
    projects.enable_services(cloud, "new-project", ("compute.googleapis.com",))
    other = api.as_member("user:o@example.com")
    base = f"{ROOT}/v1/projects/new-project"
    regions = {
        url.split("/")[-3] for url in other.get(f"{base}/global/networks/default")["subnetworks"]
    }
    assert {"us-central1", "asia-southeast3"} <= regions
    assert not {"us-central2", "me-central2"} & regions
    listed = {region["name"] for region in other.get(f"{base}/regions")["items"]}
    assert "me-central2" in listed
    assert "us-central2" not in listed
    # The local cloud's own project is one that Google let in.
    assert "regions/us-central2/" in str(api.get(f"{V1}/global/networks/default"))


def test_an_aggregated_list_has_all_scopes_if_it_is_asked(api: Client) -> None:
    scopes = api.get(f"{V1}/aggregated/subnetworks")["items"]
    assert {scope.partition("/")[0] for scope in scopes} == {"regions"}
    scopes = api.get(f"{V1}/aggregated/subnetworks", includeAllScopes="true")["items"]
    assert {scope.partition("/")[0] for scope in scopes} == {"global", "regions", "zones"}
    assert scopes["zones/us-central1-a"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


def test_google_picks_a_range_for_private_services(net: Client) -> None:
    taken = IPv4Network("10.0.0.0/24")
    for name in ("a", "b"):
        net.post(f"{V1}/global/addresses", RANGE | {"name": name, "prefixLength": 16})
        shown = net.get(f"{V1}/global/addresses/{name}")
        block = IPv4Network((shown["address"], 16))
        assert not block.overlaps(taken)
        taken = block
    assert (shown["description"], shown["networkTier"]) == ("", "PREMIUM")
    net.post(f"{V1}/global/addresses", RANGE | {"name": "c"}, status=400)


def test_an_address_has_no_labels_before_set_labels_which_is_done_at_once(net: Client) -> None:
    net.post(f"{REGION}/addresses", {"name": "a", "labels": {"k": "v"}})
    shown = net.get(f"{REGION}/addresses/a")
    assert "labels" not in shown
    assert "ipVersion" not in shown
    wanted = {"labels": {"k": "v"}, "labelFingerprint": shown["labelFingerprint"]}
    operation = net.post(f"{REGION}/addresses/a/setLabels", wanted)
    assert (operation["status"], operation["progress"]) == ("DONE", 100)
    assert "endTime" in operation
    assert net.get(f"{REGION}/addresses/a")["labels"] == {"k": "v"}


def test_labels_with_the_words_of_google_stay_as_they_are(api: Client) -> None:
    labels = {"kind": "disk", "team": "a"}
    api.post(f"{V1}/zones/us-central1-b/disks", {"name": "d", "sizeGb": "10", "labels": labels})
    assert api.get(f"{V1}/zones/us-central1-b/disks/d")["labels"] == labels


def test_a_routers_nat_has_googles_defaults(net: Client) -> None:
    nat = {"name": "nat", "sourceSubnetworkIpRangesToNat": "LIST_OF_SUBNETWORKS"}
    body = {"name": "r", "network": "global/networks/n", "bgp": None, "nats": [nat]}
    net.post(f"{REGION}/routers", body)
    shown = net.get(f"{REGION}/routers/r")
    assert "bgp" not in shown
    assert shown["encryptedInterconnectRouter"] is False
    (found,) = shown["nats"]
    assert (found["type"], found["autoNetworkTier"]) == ("PUBLIC", "PREMIUM")
    private = body | {"name": "p", "nats": [nat | {"type": "PRIVATE"}]}
    net.post(f"{REGION}/routers", private, status=501)


def test_a_template_shows_what_an_instance_of_it_will_have(net: Client) -> None:
    body = machine("us-central1-b", network="global/networks/default")
    properties = {key: body[key] for key in ("disks", "networkInterfaces")}
    properties["machineType"] = "n1-standard-1"
    sent = {"name": "t", "properties": properties}
    operation = net.post(f"{BETA}/global/instanceTemplates", sent)
    assert operation["operationType"] == "compute.instanceTemplates.insert"
    shown = net.get(f"{BETA}/global/instanceTemplates/t")
    assert shown["description"] == ""
    assert shown["properties"]["tags"] == {}
    assert shown["properties"]["disks"][0]["deviceName"] == "persistent-disk-0"
    assert "fingerprint" not in shown["properties"]["networkInterfaces"][0]


def test_an_instance_and_its_disk_show_what_googles_do(
    net: Client, machines: FakeMachines, cloud: Cloud
) -> None:
    net.post(f"{ZONE}/instances", machine("us-central1-b", name="vm"))
    cloud.clock.advance(60)  # type: ignore[attr-defined]
    shown = net.get(f"{ZONE}/instances/vm")
    assert shown["resourceStatus"] == {"scheduling": {}}
    assert shown["satisfiesPzi"] is False
    assert shown["shieldedVmConfig"] == shown["shieldedInstanceConfig"]
    assert not {"displayDevice", "reservationAffinity", "canIpForward", "serviceAccounts"} & set(
        shown
    )
    disk = net.get(f"{ZONE}/disks/vm")
    assert disk["lastAttachTimestamp"]
    assert (disk["locked"], disk["multiWriter"]) == (False, False)
    only_beta = {"shieldedVmConfig", "shieldedVmIntegrityPolicy"}
    assert not only_beta & set(net.get(f"{V1}/zones/us-central1-b/instances/vm"))
    assert not {"locked", "multiWriter"} & set(net.get(f"{V1}/zones/us-central1-b/disks/vm"))


def test_an_image_names_its_licence(net: Client) -> None:
    image = net.get(f"{ROOT}/v1/projects/debian-cloud/global/images/family/debian-11")
    assert image["licenses"][0].endswith("licenses/debian-11-bullseye")
    assert image["licenseCodes"] == ["3853522013536123851"]
    assert {"type": "SEV_CAPABLE"} not in image["guestOsFeatures"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"disks.0.diskEncryptionKey": {"rawKey": "k"}}, "disks[].diskEncryptionKey"),
        ({"disks.0.initializeParams.sourceImageEncryptionKey": {"rawKey": "k"}}, "sourceImage"),
        ({"disks.0.initializeParams.resourcePolicies": ["p"]}, "initializeParams.resourcePolicies"),
        ({"resourcePolicies": ["p"]}, "resourcePolicies"),
        ({"params": {"resourceManagerTags": {"a/b": "c"}}}, "params.resourceManagerTags"),
        ({"networkInterfaces.0.networkIP": "10.128.0.9"}, "networkInterfaces[].networkIP"),
    ],
)
def test_unsupported_fields_of_an_instance_are_refused_by_name(
    net: Client, fields: dict[str, Any], said: str
) -> None:
    body = machine("us-central1-b", name="vm")
    for path, value in fields.items():
        *way, last = path.split(".")
        place: Any = body
        for part in way:
            place = place[int(part)] if part.isdigit() else place[part]
        place[last] = value
    answer = net.post(f"{ZONE}/instances", body, status=501)
    assert said in answer["error"]["message"]
    assert "does not implement" in answer["error"]["message"]
    net.get(f"{ZONE}/disks/vm", status=404)


def test_empty_forms_of_what_is_not_implemented_ask_for_nothing(
    net: Client, machines: FakeMachines
) -> None:
    body = machine("us-central1-b", name="vm", resourcePolicies=[], params={})
    body["disks"][0]["diskEncryptionKey"] = {"rawKey": None, "kmsKeyName": ""}
    body["scheduling"] = {"nodeAffinities": [None], "maxRunDuration": None}
    net.post(f"{ZONE}/instances", body)


def test_a_disk_with_a_customers_key_is_refused(net: Client) -> None:
    body = {"name": "d", "sizeGb": "10", "diskEncryptionKey": {"kmsKeyName": "k"}}
    answer = net.post(f"{ZONE}/disks", body, status=501)
    assert "diskEncryptionKey" in answer["error"]["message"]
