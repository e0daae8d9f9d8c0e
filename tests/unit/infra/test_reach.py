"""Who reaches whom in the networks that the program declares, as `local reach` judges it.

The program runs on a recorded engine; what it declares of networks, and the machines that a stack
consists of, are made in the local cloud, whose machines exist on paper.
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
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines
from tpu_infra.settings.parse import parse

from .conftest import Engine, Run, config, context_of
from .machine_calls import calls

Json = dict[str, Any]
PROJECT, ZONE = "some-project", "us-central1-b"
COMPUTE = f"compute.googleapis.com/compute/v1/projects/{PROJECT}"
TPU, VM = "tpu-stack-test-tpu", "tpu-stack-test-vm"
POD = {"runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
NODE: Json = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"}
SLICE: Json = {"zone": "europe-west4-a", "tpu": {"acceleratorType": "v2-32", **POD}}
# 8466 profiler, 8470 gRPC, 8471 and 8476 mesh, 8482 JAX's coordinator, 8080 multislice.
PORTS = (8466, 8470, 8471, 8476, 8482, 8080)


class Stack:
    """A stack's network and machines in a local cloud."""

    def __init__(self, local: LocalCloud) -> None:
        self._local = local
        self.api = Client(local)

    def make(self, engine: Engine, wanted: list[Any]) -> None:
        """Make what a stack consists of: the network as declared, the rest as the provider asks."""
        for host, path, query, body in wanted:
            if "sourceInstanceTemplate" in query:
                continue  # The group has made its VM.
            self.api.post(f"{host}{path}", body, **query)
            if path.endswith("/subnetworks"):
                self._make_surroundings(engine)

    def _make_surroundings(self, engine: Engine) -> None:
        network = {"network": f"projects/{PROJECT}/global/networks/tpu-stack-test-net"}
        for rule in engine.of("Firewall"):
            given = {k: v for k, v in rule.inputs.items() if k not in ("allows", "project")}
            allowed = [
                {"IPProtocol": a["protocol"], "ports": a.get("ports", [])}
                for a in rule.inputs["allows"]
            ]
            body = {**given, "allowed": allowed, **network}
            self.api.post(f"{COMPUTE}/global/firewalls", body)
        router, nat = engine.one("Router"), engine.one("RouterNat")
        nats = [
            {
                "name": nat["name"],
                "natIpAllocateOption": nat["natIpAllocateOption"],
                "sourceSubnetworkIpRangesToNat": nat["sourceSubnetworkIpRangesToNat"],
            }
        ]
        body = {"name": router["name"], **network, "nats": nats}
        self.api.post(f"{COMPUTE}/regions/{router['region']}/routers", body)

    def reaches(self, source: str, destination: str) -> bool:
        return bool(answer(self._local.cloud, source, destination)["reached"])

    def stranger(self, zone: str) -> None:
        """Add a VM of somebody else to the stack's subnetwork."""
        names = {"network": "global/networks/tpu-stack-test-net"}
        names["subnetwork"] = f"regions/{zone[:-2]}/subnetworks/tpu-stack-test-net"
        body = machine(zone, name="stranger", networkInterfaces=[names])
        self.api.post(f"{COMPUTE}/zones/{zone}/instances", body)


Deploy = Callable[[Json], Stack]


@pytest.fixture
def deploy(run: Run, root: Path, tmp_path: Path) -> Iterator[Deploy]:
    local = LocalCloud(tmp_path / "cloud", clock=VirtualClock())
    local.start()
    local.cloud.machines = machines = FakeMachines()
    projects.ensure(local.cloud, PROJECT, owner=DEVELOPER)
    apis = ("tpu", "compute", "storage", "iam", "cloudresourcemanager")
    projects.enable_services(local.cloud, PROJECT, tuple(f"{api}.googleapis.com" for api in apis))

    local.cloud.store.put("setting", "deny-tpu-nodes", {"on": False})

    def up(settings: Json) -> Stack:
        parsed = parse(config(**settings), "test")
        engine, _ = run(config(**settings))
        stack = Stack(local)
        stack.make(engine, list(calls(parsed, context_of(parsed, root))))
        return stack

    yield up
    machines.suspend_all()
    local.stop()


def test_only_the_stacks_machines_reach_each_other_at_all_ports(
    deploy: Deploy,
) -> None:
    stack = deploy(SLICE)
    stack.stranger("europe-west4-a")
    hosts = [f"{TPU}/{index}" for index in range(4)]
    for port in PORTS:
        for source in (VM, hosts[0], hosts[3]):
            for destination in (VM, hosts[1], hosts[2]):
                assert stack.reaches(source, f"{destination}:{port}"), (source, destination, port)
        for outsider in ("stranger", "203.0.113.7", "35.235.240.1"):
            assert not stack.reaches(outsider, f"{hosts[0]}:{port}"), (outsider, port)


def test_people_come_in_by_iap_and_machines_go_out_by_nat(deploy: Deploy) -> None:
    stack = deploy({})
    for name in (VM, TPU):
        assert stack.reaches("35.235.240.1", f"{name}:22")
        assert not stack.reaches("203.0.113.7", f"{name}:22")
        assert stack.reaches(name, "151.101.0.1:443")


@pytest.mark.parametrize(
    "settings",
    [
        {"tpu": {"acceleratorType": "v2-8", **POD, "queued": {}}},
        {"training": {"runOn": "tpu"}},
        {"vm": {"instanceGroup": {}}},
        {"network": {"create": False}},
        {"architecture": "node", "tpu": NODE},
    ],
    ids=["queued", "on the TPU", "managed", "the default network", "classic node"],
)
def test_the_vm_reaches_the_tpu_in_every_form(deploy: Deploy, settings: Json) -> None:
    stack = deploy(settings)
    vm = f"{VM}-0" if "vm" in settings else VM
    assert stack.reaches(vm, f"{TPU}:8470")


def test_slices_of_one_request_reach_each_other(deploy: Deploy) -> None:
    tpu = {"acceleratorType": "v2-8", **POD, "slices": 2, "queued": {}}
    stack = deploy({"tpu": tpu})
    for port in PORTS:
        assert stack.reaches(f"{TPU}-0", f"{TPU}-1:{port}")
        assert stack.reaches(f"{TPU}-1", f"{TPU}-0:{port}")


def test_googles_health_checks_reach_the_managed_vm_alone(deploy: Deploy) -> None:
    stack = deploy({"vm": {"instanceGroup": {}}})
    for prober in ("35.191.0.9", "130.211.0.9"):
        assert stack.reaches(prober, f"{VM}-0:8090")
        assert not stack.reaches(prober, f"{VM}-0:8470")
    assert not stack.reaches("203.0.113.7", f"{VM}-0:8090")
