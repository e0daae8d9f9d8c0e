"""What is recreated, and what becomes of it, on the real engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests

from tests.patience import until
from tests.sandbox import session
from tpu_infra.deployer import READ, WRITE, permissions_of
from tpustack.cloud.google import Google
from tpustack.commands import recovery
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

from .test_stacks import TPU, Become, settings_of

Deploy = Callable[..., Stack]
QUEUED: dict[str, Any] = {
    **TPU,
    # Google has flex-start for this generation, in this zone among others.
    "acceleratorType": "v5litepod-4",
    "slices": 2,
    "queued": {"guaranteedHours": 2},
    "bootDiskGib": 200,
    "tags": ["workers"],
}
VM = "projects/tpu-stack-local/zones/us-central1-b/instances/tpu-stack-local-vm"


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def serial_port_says(cloud: LocalCloudCommand, text: str) -> str:
    """What the VM has written, once it has written `text`."""
    until(lambda: text in cloud.run("logs", VM), f"{text!r} is written")
    return cloud.run("logs", VM)


def test_the_vm_runs_each_job_once_and_is_replaced_for_the_next(
    deploy: Deploy, cloud: LocalCloudCommand, google: requests.Session, trainer: Any
) -> None:
    training = {"wheel": str(trainer), "tensorflowVersion": "2.19.1", "args": ["--epochs=2"]}
    vm = {"keepBootDisk": True}
    engine = deploy(training=training, vm=vm)
    engine.up(ignore)
    outputs = engine.outputs()
    bucket = outputs["bucket_url"]
    written = serial_port_says(cloud, "training finished test_accuracy=1.0")
    assert (
        "trainer got train-and-evaluate --tpu=tpu-stack-local-tpu --tpu-zone=us-central1-b "
        f"--tpu-project=tpu-stack-local --data={bucket}/data --model-dir={outputs['job_url']} "
        "--epochs=2"
    ) in written

    deploy(training=training, vm=vm, labels={"team": "vision"})
    assert "replace" not in engine.up(ignore).changes

    assert "tpu-stack: installing gs://" in written
    deploy(training=training | {"job": "second"}, vm=vm, labels={"team": "vision"})
    assert engine.up(ignore).changes["replace"] == 1
    written = serial_port_says(cloud, "training finished")
    job = engine.outputs()["job_url"].rpartition("/")[2]
    assert job.startswith("second-")
    assert f"--model-dir={bucket}/jobs/{job}" in written
    # The new VM boots from the disk of the old one, where the wheel is unpacked already.
    assert "tpu-stack: installing gs://" not in written

    google.post(f"https://compute.googleapis.com/compute/v1/{VM}/reset").raise_for_status()
    assert serial_port_says(cloud, f"the job {job} has finished already").count("trainer got") == 1
    engine.destroy(ignore)


def test_a_queued_tpu_in_use_is_replaced_and_one_taken_away_or_over_queues_again(
    deploy: Deploy, deployer: Become, cloud: LocalCloudCommand
) -> None:
    zone = {"zone": "us-central1-a"}
    permissions = permissions_of(settings_of("local", {"tpu": QUEUED, **zone}))
    account = deployer(permissions)
    # `tpustack recover` looks as the deployer does.
    recover = Google(account.session(session(cloud)))
    before = cloud.status()["resources"]
    engine = deploy(tpu=QUEUED, **zone)
    engine.up(ignore)
    outputs = engine.outputs()
    assert len(set(outputs["tpu_endpoints"])) == len(outputs["tpu_names"]) == 2
    assert engine.up(ignore).changed == 0

    deploy(tpu={**QUEUED, "queued": {}, "capacity": "spot"}, **zone)
    assert engine.up(ignore).changes["replace"] == 2
    outputs = engine.outputs()

    cloud.run("faults", "preempt", "tpu-stack-local-tpu-1")
    assert recovery.lost_tpus(recover, outputs)["tpu-stack-local-tpu-1"] == "PREEMPTED"
    engine.renew(recovery.tpu_urns(engine.resources()), ignore)
    assert recovery.lost_tpus(recover, outputs) == {}
    assert engine.up(ignore).changed == 0
    assert outputs["tpu_endpoint"].startswith("grpc://")

    deploy(tpu={**QUEUED, "queued": {"runHours": 0.5}, "capacity": "flex-start"}, **zone)
    assert engine.up(ignore).changes["replace"] == 2
    cloud.run("forward", "1800")
    until(lambda: set(recovery.lost_tpus(recover, outputs).values()) == {"gone"})
    assert engine.up(ignore).changes["replace"] == 2
    assert recovery.lost_tpus(recover, outputs) == {}
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before
    # The list of what a deployer needs is enough, or this would have failed; here: none to spare.
    assert account.asked() == permissions.of_project(READ, WRITE)
