"""The port of a TPU's worker is shut while the firewall lets nobody in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from localcloud.core.cloud import Cloud
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.localcloud.reach.conftest import COMPUTE, NET, PROJECT, ZONE, Make

Rule = Callable[..., None]
TPU = f"tpu.googleapis.com/v2/{PROJECT}/locations/{ZONE}"


def test_a_port_is_shut_until_a_rule_admits_a_machine(
    google: Client, machines: FakeMachines, rule: Rule, vm: Make
) -> None:
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
    network = {"networkConfig": {"network": NET, "subnetwork": "sub"}}
    google.post(f"{TPU}/nodes", body | network, nodeId="t")
    google.post(f"{TPU}/nodes", body, nodeId="d")
    assert is_shut(machines, "t")
    assert not is_shut(machines, "d")  # The default network lets its machines in.
    rule("other", "8471")
    assert is_shut(machines, "t")
    rule("grpc", "8470", sourceTags=["blue"])
    assert is_shut(machines, "t")
    vm("a", "blue")
    assert not is_shut(machines, "t")
    google.delete(f"{COMPUTE}/global/firewalls/grpc")
    assert is_shut(machines, "t")


def is_shut(machines: FakeMachines, node: str) -> bool:
    """What the worker of a node's host looks at."""
    (command,) = machines.specs[f"{PROJECT}/locations/{ZONE}/nodes/{node}/hosts/0"].daemons.values()
    (gate,) = (part.partition("=")[2] for part in command if part.startswith("--gate="))
    return Path(gate).exists()


def test_a_deleted_tpu_leaves_no_gate(google: Client, cloud: Cloud, machines: FakeMachines) -> None:
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
    network = {"networkConfig": {"network": NET, "subnetwork": "sub"}}
    google.post(f"{TPU}/nodes", body | network, nodeId="t")
    assert list(cloud.folder("tpu").glob("*.shut"))
    google.delete(f"{TPU}/nodes/t")
    assert list(cloud.folder("tpu").iterdir()) == []


@pytest.mark.parametrize(("deaf", "shut"), [([], False), (["*-pod-*"], True), (["*-se"], False)])
def test_runtimes_named_by_the_grpc_setting_admit_no_machine(
    google: Client, cloud: Cloud, machines: FakeMachines, deaf: list[str], shut: bool
) -> None:
    cloud.store.put("setting", "grpc", {"deaf": deaf})
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
    google.post(f"{TPU}/nodes", body, nodeId="d")
    assert is_shut(machines, "d") is shut
