"""A stack whose VM makes a preempted TPU anew, on the real engine."""

from __future__ import annotations

import time
from collections.abc import Callable

import requests

from tpustack.cloud.local import LocalCloudCommand
from tpustack.engine.stack import Stack

PLACE = "projects/tpu-stack-local"
TPU = f"{PLACE}/locations/us-central1-b/nodes/tpu-stack-local-tpu"
SECONDS = 60.0


def ignore(line: str) -> None:
    """The engine's output is not what this test looks at."""


def wait(until: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.2)


def test_a_preempted_tpu_comes_back_without_a_person_and_the_state_knows_no_difference(
    deploy: Callable[..., Stack], google: requests.Session, cloud: LocalCloudCommand
) -> None:
    def node() -> dict[str, str]:
        answer = google.get(f"https://tpu.googleapis.com/v2/{TPU}")
        return dict(answer.json()) if answer.ok else {"state": "gone", "createTime": ""}

    before = cloud.status()["resources"]
    engine = deploy(recovery={"enabled": True})
    engine.up(ignore)
    first = node()
    assert first["state"] == "READY"
    cloud.run("faults", "preempt", TPU)
    wait(lambda: node()["createTime"] != first["createTime"], "another TPU")
    wait(lambda: node()["state"] == "READY", "that it is READY")

    changes = engine.refresh(ignore)
    assert set(changes) <= {"same", "update"}, changes
    assert engine.up(ignore).changed == 0
    # What a person destroys stays destroyed.
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before
