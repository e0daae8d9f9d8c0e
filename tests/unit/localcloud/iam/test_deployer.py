"""What a deployer is asked for while Google works: the integration tests have it done at once."""

from __future__ import annotations

import pytest

from localcloud.core import projects
from localcloud.core.cloud import Cloud, Latency
from localcloud.testing import Client
from tpu_infra.deployer import WAIT, _catalog, permissions_of
from tpu_infra.settings.parse import parse

PROJECT = projects.DEFAULT_PROJECT
COMPUTE = f"compute.googleapis.com/compute/v1/projects/{PROJECT}"
TPU = f"tpu.googleapis.com/v2/projects/{PROJECT}/locations/us-central1-b"
DEPLOYER = "user:deployer@example.com"
STACK = {"gcp:project": PROJECT, "tpu-stack:zone": "us-central1-b"}
NODE = {
    "acceleratorType": "v2-8",
    "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt",
    "networkConfig": {"network": "default"},
    "serviceAccount": {
        "email": f"{projects.number(PROJECT)}-compute@developer.gserviceaccount.com"
    },
}


@pytest.fixture
def latency() -> Latency:
    return "real"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com", "iam.googleapis.com", "tpu.googleapis.com")


def become_deployer(api: Client, permissions: list[str]) -> Client:
    roles = f"iam.googleapis.com/v1/projects/{PROJECT}/roles"
    role = {"title": "Deployer", "includedPermissions": permissions}
    name = api.post(roles, {"roleId": "deployer", "role": role})["name"]
    url = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = api.post(f"{url}:getIamPolicy")
    policy["bindings"].append({"role": name, "members": [DEPLOYER]})
    api.post(f"{url}:setIamPolicy", {"policy": policy})
    return api.as_member(DEPLOYER)


def begin(deployer: Client) -> list[str]:
    """Begin what takes a while in a region, a zone, everywhere and at TPUs; what to poll."""
    network = deployer.post(f"{COMPUTE}/global/networks", {"name": "n"})
    router = {"name": "r", "network": f"projects/{PROJECT}/global/networks/default"}
    begun = [network, deployer.post(f"{COMPUTE}/regions/us-central1/routers", router)]
    begun.append(deployer.post(f"{COMPUTE}/zones/us-central1-b/disks", {"name": "d", "sizeGb": 10}))
    node = deployer.post(f"{TPU}/nodes", NODE, nodeId="t")
    return [
        *(operation["selfLink"] for operation in begun),
        f"tpu.googleapis.com/v2/{node['name']}",
    ]


def test_the_list_names_permissions_that_there_are(api: Client) -> None:
    names = {
        name
        for by_kind in _catalog()["groups"].values()
        for kind in by_kind.values()
        for name in kind
    }
    become_deployer(api, sorted(names))


def test_a_deployer_may_wait_for_operations_and_needs_permissions_to_start_them(
    api: Client, cloud: Cloud
) -> None:
    permissions = permissions_of(parse(STACK, "test"))
    deployer = become_deployer(api, permissions.of_project())
    polls = begin(deployer)
    cloud.asked.clear()
    for poll in polls:
        deployer.get(poll)
    # Whoever follows the training waits at the VM's serial port.
    waits = {*cloud.asked[DEPLOYER], "compute.instances.getSerialPortOutput"}
    assert sorted(waits) == permissions.of_project(WAIT)
    rest = sorted(set(permissions.of_project()) - set(permissions.of_project(WAIT)))
    role = f"iam.googleapis.com/v1/projects/{PROJECT}/roles/deployer"
    api.patch(role, {"includedPermissions": rest}, updateMask="includedPermissions")
    for poll in polls:
        deployer.get(poll, status=403)
