"""A network with machines that exist on paper, and the question who reaches whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.call import Json
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines

PROJECT = "projects/tpu-stack-local"
COMPUTE = f"compute.googleapis.com/compute/v1/{PROJECT}"
ZONE = "us-central1-b"
NET = f"{PROJECT}/global/networks/net"

Make = Callable[..., str]
Ask = Callable[..., Json]


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    apis = ("compute", "tpu", "iam")
    return tuple(f"{api}.googleapis.com" for api in apis)


@pytest.fixture
def google(api: Client, machines: FakeMachines) -> Client:
    """The owner's client of a project with the network `net`, which has no rules."""
    network = {"name": "net", "autoCreateSubnetworks": False}
    api.post(f"{COMPUTE}/global/networks", network)
    subnet = {"name": "sub", "network": NET, "ipCidrRange": "10.0.0.0/24"}
    api.post(f"{COMPUTE}/regions/us-central1/subnetworks", subnet)
    return api


@pytest.fixture
def vm(google: Client) -> Make:
    """Makes a VM in `net`; its path."""

    def make(name: str, *tags: str, account: str = "", public: bool = False) -> str:
        interface: Json = {"network": NET, "subnetwork": "regions/us-central1/subnetworks/sub"}
        if public:
            interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT"}]
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        fields: dict[str, Any] = {"name": name, "networkInterfaces": [interface]}
        if tags:
            fields["tags"] = {"items": list(tags)}
        if account:
            fields["serviceAccounts"] = [{"email": account, "scopes": scopes}]
        google.post(f"{COMPUTE}/zones/{ZONE}/instances", machine(ZONE, **fields))
        return f"{PROJECT}/zones/{ZONE}/instances/{name}"

    return make


@pytest.fixture
def rule(google: Client) -> Callable[..., None]:
    """Makes a firewall rule of `net`; without anything said it lets all TCP in from everywhere."""

    def make(name: str, *ports: str, deny: bool = False, **fields: Any) -> None:
        what = {"IPProtocol": fields.pop("protocol", "tcp")}
        body: Json = {"name": name, "network": NET, **fields}
        body["denied" if deny else "allowed"] = [what | ({"ports": list(ports)} if ports else {})]
        google.post(f"{COMPUTE}/global/firewalls", body)

    return make


@pytest.fixture
def account(google: Client) -> Make:
    """Makes a service account; its address."""

    def make(name: str) -> str:
        made = google.post(f"iam.googleapis.com/v1/{PROJECT}/serviceAccounts", {"accountId": name})
        return str(made["email"])

    return make


@pytest.fixture
def reach(local_cloud: LocalCloud, google: Client) -> Ask:
    """Asks as `local reach` does: `reach("a", "b:80")`."""
    from localcloud.services.reach import answer

    def question(source: str, destination: str) -> Json:
        return answer(local_cloud.cloud, source, destination)

    return question
