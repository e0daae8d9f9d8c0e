"""A stack on the real engine and provider: up, up again, destroy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tpu_infra.deployer import READ, WRITE, permissions_of
from tpu_infra.settings import StackSettings
from tpu_infra.settings.parse import parse
from tpustack.engine.stack import Stack
from tpustack.errors import TpustackError
from tpustack.local import LocalCloudCommand
from tpustack.project import root

from .deployer import Deployer

TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
NODE = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1", "cidrBlock": "10.240.1.0/29"}
# The other forms of TPU are in the other files here; the stack file `local` is in the demo.
CLASSIC: dict[str, Any] = {
    "tpu": {**NODE, "capacity": "preemptible"},
    "network": {"create": False},
}
Deploy = Callable[..., Stack]
Become = Callable[..., Deployer]


def settings_of(stack: str, changes: dict[str, Any]) -> StackSettings:
    """A stack file's settings with changes."""
    text = (root() / "stacks" / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8")
    changed = {f"tpu-stack:{name}": value for name, value in changes.items()}
    return parse(yaml.safe_load(text)["config"] | changed, stack)


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def test_a_stack_comes_up_stays_as_it_is_and_leaves_nothing(
    deploy: Deploy, deployer: Become, cloud: LocalCloudCommand
) -> None:
    permissions = permissions_of(settings_of("local-node", CLASSIC))
    account = deployer(permissions)
    before = cloud.status()["resources"]
    engine = deploy("local-node", **CLASSIC)
    first = engine.up(ignore)
    ours = [each["urn"] for each in engine.resources() if "::pulumi:providers:" not in each["urn"]]
    assert first.changes == {"create": len(ours)}
    outputs = engine.outputs()
    assert outputs["tpu_endpoint"].startswith("grpc://")
    assert outputs["tpu_endpoints"] == [outputs["tpu_endpoint"]]
    assert "reaches" in cloud.run("reach", outputs["vm_name"], outputs["tpu_endpoint"])
    assert engine.up(ignore).changed == 0

    cloud.run("faults", "preempt", "tpu-stack-local-node-tpu")
    assert engine.up(ignore).changes["replace"] >= 1
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before
    # Nor does Google keep, and bill, what the bucket held.
    assert cloud.status()["softDeletedBytes"] == 0
    # The list of what a deployer needs is enough, or this would have failed; here: none to spare.
    assert account.asked() == permissions.of_project(READ, WRITE)


def test_wrong_settings_are_refused_all_at_once_before_anything_is_made(
    deploy: Deploy, cloud: LocalCloudCommand
) -> None:
    before = cloud.status()["resources"]
    engine = deploy(
        zone="us-central1-b",
        tpu={"acceleratorType": "v4-8", "runtimeVersion": "tpu-vm-tf-9.9.9", "slize": 2},
        bucket={"location": "europe-west4"},
        vm={"machineType": "n1-nosuch-2"},
    )
    with pytest.raises(TpustackError) as refusal:
        engine.up(ignore)
    for part in ("tpu.slize", "v4-8", "tpu-vm-tf-9.9.9", "europe-west4", "n1-nosuch-2"):
        assert part in str(refusal.value)
    assert "Traceback" not in str(refusal.value)
    assert cloud.status()["resources"] == before
