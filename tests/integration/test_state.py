"""Living with a stack's state: updates that are killed."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.killer import Killer
from tests.patience import PATIENCE, until
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

Deploy = Callable[..., Stack]
Pulumi = Callable[..., "subprocess.Popen[str]"]


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


CREATED_AT_ONCE = {
    "storage:Bucket": "storage.buckets.insert",
    "compute:Network": "compute.networks.insert",
    "serviceaccount:Account": "iam.projects.serviceAccounts.create",
}


CREATED_SIDE_BY_SIDE = {
    "compute:Instance": "compute.instances.insert",
    "tpu:QueuedResource": "tpu.projects.locations.queuedResources.create",
}
LITE = {"runtimeVersion": "tpu-vm-tf-2.16.1-pod-pjrt"}
QUEUED = {
    "tpu": {**LITE, "acceleratorType": "v5litepod-16", "queued": {}},
}
AT_ONCE = {"tpu": {**LITE, "acceleratorType": "v5litepod-8"}}
DESTROYED_AT_ONCE = "prod"


# Each on another of the repository's stack files; the other tests are on `local`.
@pytest.mark.parametrize(
    ("stack", "calls"),
    [
        ("dev", CREATED_AT_ONCE),
        ("staging", {"tpu:V2Vm": "tpu.projects.locations.nodes.create"}),
        ("prod", CREATED_SIDE_BY_SIDE),
    ],
)
def test_what_google_makes_for_a_killed_update_is_found_and_leaves_nothing(
    stack: str, calls: dict[str, str], deploy: Deploy, cloud: LocalCloudCommand, pulumi: Pulumi
) -> None:
    before = cloud.status()["resources"]
    more = QUEUED if calls is CREATED_SIDE_BY_SIDE else AT_ONCE if stack == "staging" else {}
    engine = deploy(stack, project="tpu-stack-local", bucket={"forceDestroy": True}, **more)
    # Google makes what the engine, dead by then, has asked for.
    for method in calls.values():
        cloud.run("faults", "add", method, "--status", "0", "--delay", "8", "--count", "1")
    options = ("--yes", "--skip-preview", "--non-interactive", "--color=never")
    update = pulumi("up", *options, stack=stack)
    kill_while_it_creates(update, cloud)
    for method in calls.values():
        await_call(method, cloud)
    recovery = engine.recovery(ignore)
    # Nothing says where a plain `pulumi` runs, so a person has to.
    locks = recovery.locks() or []
    assert not recovery.are_orphaned(locks)
    recovery.release(locks)
    found = recovery.take_up()
    assert all(any(kind.partition(":")[2] in urn for urn in found) for kind in calls)
    if stack != DESTROYED_AT_ONCE:
        engine.up(ignore)
        assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before


def kill_while_it_creates(update: subprocess.Popen[str], cloud: LocalCloudCommand) -> None:
    """Kill it once Google has all the requests, each of which uses up a fault."""
    deadline = time.monotonic() + PATIENCE
    while cloud.status()["faults"]:
        assert update.poll() is None, update.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    update.kill()
    assert update.wait() == -signal.SIGKILL


def await_call(method: str, cloud: LocalCloudCommand) -> None:
    until(lambda: f" {method} " in cloud.run("logs", "requests"), f"{method} is called")


def test_a_stack_that_is_killed_again_and_again_converges_and_leaves_nothing(
    deploy: Deploy, cloud: LocalCloudCommand, project: Path, environment: Mapping[str, str]
) -> None:
    before = cloud.status()["resources"]
    life = Killer(project, environment).live(deploy(), seed=1, kills=7)
    assert (len(life.points), life.changes_after, life.processes_left) == (7, 0, 0)
    assert cloud.status()["resources"] == before
