"""Classic TPU nodes and the lists of what there is."""

from __future__ import annotations

import pytest

from localcloud.core import projects
from localcloud.core.call import Json
from localcloud.core.cloud import Cloud
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines

PARENT = "projects/tpu-stack-local/locations/us-central1-b"
V1 = f"tpu.googleapis.com/v1/{PARENT}"
V2 = f"tpu.googleapis.com/v2/{PARENT}"
ALPHA = f"tpu.googleapis.com/v2alpha1/{PARENT}"

NODE: Json = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"}
NUMBER = projects.number("tpu-stack-local")


@pytest.fixture(autouse=True)
def on_googles_list(cloud: Cloud) -> None:
    """This project may have classic nodes."""
    cloud.store.put("setting", "deny-tpu-nodes", {"on": False})


def test_a_node_gets_a_range_a_network_and_the_services_account(tpu: Client) -> None:
    tpu.post(f"{V1}/nodes", NODE, nodeId="t")
    node = tpu.get(f"{V1}/nodes/t")
    assert (node["state"], node["apiVersion"]) == ("READY", "V1")
    assert node["cidrBlock"].endswith("/29")
    assert node["network"] == f"projects/{NUMBER}/global/networks/default"
    assert node["serviceAccount"] == f"service-{NUMBER}@cloud-tpu.iam.gserviceaccount.com"


def test_two_nodes_get_ranges_that_do_not_overlap(tpu: Client) -> None:
    for name in ("a", "b"):
        tpu.post(f"{V1}/nodes", NODE, nodeId=name)
    blocks = {node["cidrBlock"] for node in tpu.get(f"{V1}/nodes")["nodes"]}
    assert len(blocks) == 2


@pytest.mark.parametrize(
    ("accelerator", "block", "said"),
    [
        ("v2-8", "10.2.0.0/30", "needs a range of at least /29"),
        ("v2-32", "10.2.0.0/30", "needs a range of at least /29"),
        ("v3-64", "10.2.0.0/29", "needs a range of at least /28"),
        ("v2-128", "10.2.0.0/28", "needs a range of at least /27"),
        ("v2-8", "8.8.8.0/29", "must be within 10.0.0.0/8"),
        ("v2-8", "10.2.0.1/29", "has host bits set"),
        ("v2-8", "banana", "banana"),
    ],
)
def test_a_wrong_range_is_refused(tpu: Client, accelerator: str, block: str, said: str) -> None:
    zone = V1 if accelerator == "v2-8" else V1.replace("us-central1-b", "europe-west4-a")
    body = NODE | {"acceleratorType": accelerator, "cidrBlock": block}
    answer = tpu.post(f"{zone}/nodes", body, nodeId="t", status=400)
    assert said in answer["error"]["message"]


def test_a_range_of_a_subnetwork_or_another_node_is_taken(tpu: Client) -> None:
    answer = tpu.post(f"{V1}/nodes", NODE | {"cidrBlock": "10.128.0.0/29"}, nodeId="t", status=400)
    assert "10.128.0.0/20 of subnetwork 'default'" in answer["error"]["message"]
    tpu.post(f"{V1}/nodes", NODE | {"cidrBlock": "10.2.0.0/29"}, nodeId="a")
    answer = tpu.post(f"{V1}/nodes", NODE | {"cidrBlock": "10.2.0.0"}, nodeId="b", status=400)
    assert f"TPU node '{PARENT}/nodes/a'" in answer["error"]["message"]


def test_any_other_project_gets_googles_message(tpu: Client, cloud: Cloud) -> None:
    cloud.store.delete("setting", "deny-tpu-nodes")
    answer = tpu.post(f"{V1}/nodes", NODE, nodeId="t", status=400)
    assert answer["error"]["message"] == (
        "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture "
        "or contact Cloud TPU team to gain TPU Node access."
    )


def test_reimaging_boots_the_other_version(tpu: Client, machines: FakeMachines) -> None:
    tpu.post(f"{V1}/nodes", NODE, nodeId="t")
    tpu.post(f"{V1}/nodes/t:reimage", {"tensorflowVersion": "2.11.0"})
    node = tpu.get(f"{V1}/nodes/t")
    assert (node["state"], node["tensorflowVersion"]) == ("READY", "2.11.0")
    assert machines.running(f"{PARENT}/nodes/t/hosts/0")
    tpu.post(f"{V1}/nodes/t:reimage", {"tensorflowVersion": "0.1"}, status=400)


def test_version_2_shows_the_same_node(tpu: Client) -> None:
    tpu.post(f"{V1}/nodes", NODE, nodeId="t")
    assert tpu.get(f"{V2}/nodes/t")["runtimeVersion"] == "2.12.1"


def test_types_and_versions_of_a_zone_are_listed(tpu: Client) -> None:
    types = tpu.get(f"{V2}/acceleratorTypes")["acceleratorTypes"]
    assert {"v2-8", "v3-8", "v6e-8"} <= {one["type"] for one in types}
    assert "v4-8" not in {one["type"] for one in types}
    tpu.get(f"{V2}/acceleratorTypes/v4-8", status=404)
    runtimes = tpu.get(f"{ALPHA}/runtimeVersions")["runtimeVersions"]
    assert "tpu-vm-tf-2.19.0-pod-pjrt" in {one["version"] for one in runtimes}
    versions = tpu.get(f"{V1}/tensorflowVersions")["tensorflowVersions"]
    assert "2.12.1" in {one["version"] for one in versions}
    names = {location["locationId"] for location in _locations(tpu)}
    assert {"us-central1-b", "europe-west4-a"} <= names


def _locations(tpu: Client) -> list[Json]:
    found: list[Json] = tpu.get("tpu.googleapis.com/v1/projects/tpu-stack-local/locations")[
        "locations"
    ]
    return found
