"""A stack whose VM makes a preempted TPU anew, on the real engine."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tpustack.cloud.local import LocalCloudCommand
from tpustack.engine.stack import Stack

from .imports import enable

PLACE = "projects/tpu-stack-local"
NODES = f"https://tpu.googleapis.com/v2/{PLACE}/locations/us-central1-b/nodes"
POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "queued": {"tpu": {**POD, "capacity": "spot"}},
    "queued slices": {"tpu": {**POD, "capacity": "spot", "slices": 2}},
    "classic": {
        "tpu": {
            "acceleratorType": "v2-8",
            "tensorflowVersion": "2.12.1",
            "cidrBlock": "172.16.1.0/29",
            "capacity": "preemptible",
        },
        "network": {"create": False},
    },
}
SECONDS = 60.0


def ignore(line: str) -> None:
    """The engine's output is not what this test looks at."""


def wait(until: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.2)


@pytest.mark.parametrize("form", FORMS)
def test_a_preempted_tpu_comes_back_without_a_person_and_the_state_knows_no_difference(
    deploy: Callable[..., Stack],
    google: requests.Session,
    cloud: LocalCloudCommand,
    pulumi: Callable[..., subprocess.Popen[str]],
    form: str,
) -> None:
    def there() -> dict[str, dict[str, Any]]:
        found = google.get(NODES).json().get("nodes", [])
        return {node["name"].rpartition("/")[2]: node for node in found}

    def all_ready() -> bool:
        states = [node["state"] for node in there().values()]
        return states == ["READY"] * len(first)

    before = cloud.status()["resources"]
    stack = "local-node" if form == "classic" else "local"
    if form == "classic":
        enable(google, "tpu")
    engine = deploy(stack, recovery={"enabled": True}, **FORMS[form])
    engine.up(ignore)
    first = there()
    assert all_ready()
    lost = max(first)
    cloud.run("faults", "preempt", lost)
    made = first[lost]["createTime"]
    wait(lambda: there().get(lost, first[lost])["createTime"] != made, "another TPU")
    wait(all_ready, "that it is READY")

    run = pulumi("preview", "--refresh", "--json", stack=stack)
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 0, said
    steps = {(step["op"], step["urn"]) for step in json.loads(said)["steps"]}
    assert {op for op, _ in steps} <= {"same", "refresh"}, steps
    changes = engine.refresh(ignore)
    assert set(changes) <= {"same", "update"}, changes
    assert engine.up(ignore).changed == 0
    # What a person destroys stays destroyed.
    engine.destroy(ignore)
    if form != "classic":
        assert cloud.status()["resources"] == before
    assert there() == {}
