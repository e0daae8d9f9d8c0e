"""What is preemptible, and not spot, is taken away after 24 hours, as on Google."""

from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines

ZONE = "projects/tpu-stack-local/zones/us-central1-b"
INSTANCES = f"compute.googleapis.com/compute/v1/{ZONE}/instances"
PARENT = "projects/tpu-stack-local/locations/us-central1-b"
NODES = f"tpu.googleapis.com/v2alpha1/{PARENT}/nodes"
VM = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
OLD = {"preemptible": True, "automaticRestart": False}
HOUR = 3600.0


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("tpu.googleapis.com",)


@pytest.fixture
def google(api: Client, machines: FakeMachines) -> Client:
    """With a VM and a TPU of each kind."""
    for name, tier in (("spot", {"spot": True}), ("old", {"preemptible": True})):
        api.post(NODES, {**VM, "schedulingConfig": tier}, nodeId=name)
    for name, scheduling in (("spot", {**OLD, "provisioningModel": "SPOT"}), ("old", OLD)):
        body = machine("us-central1-b", name=name, scheduling=scheduling)
        api.post(INSTANCES, body)
    return api


def states(google: Client, name: str) -> tuple[str, str]:
    """Of the VM and the TPU."""
    vm, tpu = google.get(f"{INSTANCES}/{name}"), google.get(f"{NODES}/{name}")
    return vm["status"], tpu["state"]


def test_preemptible_instances_run_for_a_day_and_spot_instances_longer(
    google: Client, clock: VirtualClock
) -> None:
    clock.advance(23.9 * HOUR)
    assert states(google, "old") == ("RUNNING", "READY")
    clock.advance(0.2 * HOUR)
    assert states(google, "old") == ("TERMINATED", "PREEMPTED")
    clock.advance(100 * HOUR)
    assert states(google, "spot") == ("RUNNING", "READY")


def test_the_limit_of_a_deleted_machine_does_not_end_its_successor(
    google: Client, clock: VirtualClock
) -> None:
    clock.advance(20 * HOUR)
    for url in (INSTANCES, NODES):
        google.delete(f"{url}/old")
    clock.advance(1 * HOUR)
    google.post(NODES, {**VM, "schedulingConfig": {"preemptible": True}}, nodeId="old")
    google.post(INSTANCES, machine("us-central1-b", name="old", scheduling=OLD))
    clock.advance(23 * HOUR)
    assert states(google, "old") == ("RUNNING", "READY")
    clock.advance(2 * HOUR)
    assert states(google, "old") == ("TERMINATED", "PREEMPTED")


def test_a_start_begins_a_new_day(google: Client, clock: VirtualClock) -> None:
    clock.advance(20 * HOUR)
    for url in (f"{INSTANCES}/old/stop", f"{NODES}/old:stop"):
        google.post(url)
    for url in (f"{INSTANCES}/old/start", f"{NODES}/old:start"):
        google.post(url)
    clock.advance(23 * HOUR)
    assert states(google, "old") == ("RUNNING", "READY")
    clock.advance(2 * HOUR)
    assert states(google, "old") == ("TERMINATED", "PREEMPTED")


def test_a_run_limit_that_passed_while_off_ends_the_vm_at_the_start(
    google: Client, local_cloud: LocalCloud, clock: VirtualClock
) -> None:
    home = local_cloud.cloud.home
    local_cloud.stop()
    later = VirtualClock(clock.now() + 30 * HOUR)
    again = LocalCloud(home, clock=later)
    again.cloud.machines = FakeMachines()
    again.start()
    try:
        later.advance(1.0)
        assert states(Client(again), "old") == ("TERMINATED", "PREEMPTED")
    finally:
        again.stop()
