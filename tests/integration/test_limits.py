"""A stack with limits, on the real engine: what ends, what comes back, what others change."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import requests

from tests.patience import until
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

Deploy = Callable[..., Stack]
PLACE = "projects/tpu-stack-local"
VM = f"https://compute.googleapis.com/compute/v1/{PLACE}/zones/us-central1-b/instances"
VM += "/tpu-stack-local-vm"
NODE = f"https://tpu.googleapis.com/v2/{PLACE}/locations/us-central1-b/nodes/tpu-stack-local-tpu"


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


class Limited:
    """The machines of a stack with limits, as Google shows them."""

    def __init__(self, google: requests.Session, cloud: LocalCloudCommand) -> None:
        self._google, self._cloud = google, cloud

    def tpu(self) -> str:
        answer = self._google.get(NODE)
        return str(answer.json()["state"]) if answer.ok else "gone"

    def vm(self) -> str:
        return str(self._google.get(VM).json()["status"])

    def labels(self) -> dict[str, str]:
        return dict(self._google.get(VM).json()["labels"])

    def label(self, **labels: str) -> None:
        """Change labels of the VM behind the stack's back."""
        there = self._google.get(VM).json()
        change = {"labels": there["labels"] | labels, "labelFingerprint": there["labelFingerprint"]}
        self._google.post(f"{VM}/setLabels", json=change).raise_for_status()

    def says(self, text: str) -> None:
        """Wait until the VM's serial port says it."""
        vm = f"{PLACE}/zones/us-central1-b/instances/tpu-stack-local-vm"
        until(lambda: text in self._cloud.run("logs", vm), f"{text!r} is written")

    def shorten(self, **limits: Any) -> None:
        """Change the limits on the VM itself, where shorter ones than the stack's can be set."""
        metadata = self._google.get(VM).json()["metadata"]
        items = {item["key"]: item["value"] for item in metadata["items"]}
        items["limits"] = json.dumps(json.loads(items["limits"]) | limits)
        changed = [{"key": key, "value": value} for key, value in items.items()]
        body = {"fingerprint": metadata["fingerprint"], "items": changed}
        self._google.post(f"{VM}/setMetadata", json=body).raise_for_status()


def test_a_tpu_is_stopped_when_idle_deleted_when_its_time_is_up_and_comes_back_by_a_refresh(
    deploy: Deploy, google: requests.Session, cloud: LocalCloudCommand
) -> None:
    before = cloud.status()["resources"]
    limits = {"timeToLiveHours": 8, "idleMinutes": 30}
    engine = deploy(limits=limits, labels={"team": "vision"})
    engine.up(ignore)
    bucket = engine.outputs()["bucket_name"]
    stack = Limited(google, cloud)
    stack.says("training finished")

    stack.shorten(idleMinutes=0.01)
    stack.says("tpu-stack-local-tpu is stopped: it was idle for 0.01 minutes")
    until(lambda: stack.tpu() == "STOPPED", "the TPU stops")
    # A change from outside is seen and undone, and the TPU stays off.
    stack.label(team="audio")
    assert engine.refresh(ignore)["update"] >= 1
    assert engine.up(ignore).changes | {"same": 0} == {"update": 1, "same": 0}
    assert stack.labels()["team"] == "vision"
    assert stack.tpu() == "STOPPED"

    stack.shorten(timeToLiveHours=0.0001)
    until(lambda: (stack.tpu(), stack.vm()) == ("gone", "TERMINATED"), "TPU and VM are gone")
    objects = google.get(f"https://storage.googleapis.com/storage/v1/b/{bucket}/o?prefix=limits/")
    assert len(objects.json()["items"]) == 2

    assert engine.refresh(ignore)["delete"] == 1
    assert engine.up(ignore).changes["create"] == 1
    assert (stack.tpu(), stack.vm()) == ("READY", "RUNNING")
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before
