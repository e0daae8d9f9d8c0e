"""A stack in a Shared VPC: what the program declares, and what it takes on Google's side.

The program runs on a recorded engine; its machines are made in the local cloud, with a host project
that lends its network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import DEVELOPER
from localcloud.services.reach import answer
from localcloud.testing import Client, UnexpectedStatus
from tests.unit.localcloud.fake_machines import FakeMachines
from tpu_infra.settings.parse import parse

from .conftest import Run, config, context_of
from .machine_calls import calls

Json = dict[str, Any]
SERVICE, HOST = "some-project", "host-project"
COMPUTE = "compute.googleapis.com/compute/v1/projects"
SHARED: Json = {"create": False, "project": HOST, "name": "lent"}
DEPLOYER = "user:deployer@example.com"


def test_machines_are_declared_in_the_host_projects_network(run: Run) -> None:
    network = {**SHARED, "subnetwork": "tpus"}
    engine, _ = run(config(network=network, vm={"instanceGroup": {}}))
    interface = engine.one("InstanceTemplate")["networkInterfaces"][0]
    path = f"projects/{HOST}/global/networks/lent"
    subnetwork = f"projects/{HOST}/regions/us-central1/subnetworks/tpus"
    assert (interface["network"], interface["subnetwork"]) == (path, subnetwork)
    given = engine.one("V2Vm")["networkConfig"]
    assert (given["network"], given["subnetwork"]) == (path, subnetwork)
    # Rules belong to the network's project, so that nobody here makes one.
    assert engine.of("Firewall") == []
    decides, roles = (warning for warning in engine.warnings if warning.startswith("network."))
    assert f"Network lent of {HOST} must allow" in decides
    assert "health checks" in decides
    assert "roles/compute.networkUser" in roles
    assert "roles/tpu.xpnAgent" in roles


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCloud]:
    """A host project with a network, and the stack's project with somebody who deploys there."""
    local = LocalCloud(tmp_path / "cloud", clock=VirtualClock())
    local.start()
    local.cloud.machines = machines = FakeMachines()
    for project in (SERVICE, HOST):
        projects.ensure(local.cloud, project, owner=DEVELOPER)
        apis = ("tpu", "compute", "storage", "iam", "cloudresourcemanager")
        projects.enable_services(
            local.cloud, project, tuple(f"{api}.googleapis.com" for api in apis)
        )
    api = Client(local)
    network = f"projects/{HOST}/global/networks/lent"
    made = {"name": "lent", "autoCreateSubnetworks": False}
    api.post(f"{COMPUTE}/{HOST}/global/networks", made)
    subnet = {"name": "lent", "network": network, "ipCidrRange": "10.3.0.0/24"}
    api.post(f"{COMPUTE}/{HOST}/regions/us-central1/subnetworks", subnet)
    grant(api, SERVICE, "roles/owner", DEPLOYER)
    yield local
    machines.suspend_all()
    local.stop()


def grant(api: Client, project: str, role: str, member: str) -> None:
    url = f"cloudresourcemanager.googleapis.com/v1/projects/{project}"
    policy = api.post(f"{url}:getIamPolicy", {})
    policy["bindings"].append({"role": role, "members": [member]})
    api.post(f"{url}:setIamPolicy", {"policy": policy})


@pytest.fixture
def up(local: LocalCloud, root: Path) -> Callable[[], str]:
    """Makes what is still missing of the stack, as its deployer; what Google refuses it with."""
    settings = parse(config(network=SHARED), "test")
    wanted = list(calls(settings, context_of(settings, root)))
    api = Client(local, DEPLOYER)

    def deploy() -> str:
        while wanted:
            host, path, query, body = wanted[0]
            try:
                api.call("POST", f"{host}{path}", body, status=200, **query)
            except UnexpectedStatus as refused:
                return str(refused)
            wanted.pop(0)
        return ""

    return deploy


def test_a_stack_comes_up_once_the_host_project_has_granted_what_the_page_says(
    local: LocalCloud, up: Callable[[], str]
) -> None:
    owner = Client(local)
    assert "Cross-project references for this resource are not allowed" in up()
    owner.post(f"{COMPUTE}/{HOST}/enableXpnHost")
    attached = {"xpnResource": {"type": "PROJECT", "id": SERVICE}}
    owner.post(f"{COMPUTE}/{HOST}/enableXpnResource", attached)
    agent = f"service-{projects.number(SERVICE)}@gcp-sa-tpu.iam.gserviceaccount.com"
    refused = up()
    assert "roles/tpu.xpnAgent" in refused
    assert agent in refused
    grant(owner, HOST, "roles/tpu.xpnAgent", f"serviceAccount:{agent}")
    assert "compute.subnetworks.use" in up()
    grant(owner, HOST, "roles/compute.networkUser", DEPLOYER)
    assert up() == ""
    assert not reaches(local)
    rule = {
        "name": "tpu-stack-machines",
        "network": f"projects/{HOST}/global/networks/lent",
        "allowed": [{"IPProtocol": "all"}],
        "sourceTags": ["tpu-stack-test-net"],
        "targetTags": ["tpu-stack-test-net"],
    }
    owner.post(f"{COMPUTE}/{SERVICE}/global/firewalls", rule, status=400)
    owner.post(f"{COMPUTE}/{HOST}/global/firewalls", rule)
    assert reaches(local)
    owner.delete(f"{COMPUTE}/{HOST}/regions/us-central1/subnetworks/lent", status=400)


def reaches(local: LocalCloud) -> bool:
    found = answer(local.cloud, "tpu-stack-test-vm", "tpu-stack-test-tpu:8470")
    return bool(found["reached"])
