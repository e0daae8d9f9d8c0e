"""Stacks of the first release under today's program, on the real engine.

`first_release/` holds what the commit a43744d left of each kind of stack: its settings, the
engine's state, and the calls to Google by which it came to be, which are made again here.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from infra.components.machine import startup_script
from tpustack.cloud.local import LocalCloudCommand
from tpustack.engine.stack import Stack

Deploy = Callable[..., Stack]
Pulumi = Callable[..., "subprocess.Popen[str]"]
FIRST = Path(__file__).parent / "first_release"
VM = (
    "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local/zones/us-central1-b/"
    "instances/tpu-stack-local-vm"
)
WHEEL = "tpu_stack_training-0.0.1-py3-none-any.whl"
HARMLESS = {"same", "update", "create"}
# A firewall rule that another one has taken the place of.
GIVEN_UP = "compute/firewall:Firewall::allow-grpc"


@dataclass(frozen=True)
class FirstRelease:
    """A stack of the first release, there again."""

    engine: Stack
    name: str
    redeclare: Callable[..., Stack]
    """Gives it other settings."""


First = Callable[..., FirstRelease]


@pytest.fixture
def first_release(
    deploy: Deploy, google: requests.Session, pulumi: Pulumi, tmp_path: Path
) -> First:
    def restore(form: str, *, in_the_cloud: bool) -> FirstRelease:
        made = json.loads(gzip.decompress((FIRST / f"{form}.json.gz").read_bytes()))
        for call in made["calls"] if in_the_cloud else ():
            answer = google.request(
                call["verb"], call["url"], params=call["query"], json=call["body"]
            )
            assert answer.ok, answer.text
        wheel = tmp_path / WHEEL
        wheel.write_bytes(b"the wheel of the first release")
        training = {"wheel": str(wheel), **made["settings"].pop("training")}

        def redeclare(**changes: Any) -> Stack:
            settings = made["settings"] | changes
            return deploy(
                made["stack"], **settings | {"training": training | settings.get("training", {})}
            )

        engine = redeclare()
        state = {"version": made["version"], "deployment": made["deployment"]}
        (tmp_path / "state.json").write_text(json.dumps(state), encoding="utf-8")
        said(pulumi("stack", "import", f"--file={tmp_path / 'state.json'}", stack=made["stack"]))
        return FirstRelease(engine, made["stack"], redeclare)

    return restore


def said(run: subprocess.Popen[str]) -> str:
    """What a command wrote that succeeded."""
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output
    return output


def script(google: requests.Session) -> str:
    """The start-up script of the VM."""
    items = google.get(VM).json()["metadata"]["items"]
    return str(next(item["value"] for item in items if item["key"] == "startup-script"))


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def test_a_stack_of_the_first_release_is_kept_as_it_is(
    first_release: First, pulumi: Pulumi
) -> None:
    stack = first_release("node", in_the_cloud=False)  # A preview asks the state alone.
    preview = json.loads(said(pulumi("preview", "--json", stack=stack.name)))
    wrong = {step["urn"]: step["op"] for step in preview["steps"] if step["op"] not in HARMLESS}
    assert [urn for urn in wrong if not urn.endswith(GIVEN_UP)] == []


def test_it_is_updated_stays_as_it_is_and_goes_without_a_trace(
    first_release: First, cloud: LocalCloudCommand, google: requests.Session
) -> None:
    before = cloud.status()["resources"]
    stack = first_release("own-grpc", in_the_cloud=True)
    old_script = script(google)
    changes = stack.engine.up(ignore).changes
    assert set(changes) <= HARMLESS | {"delete"}
    assert changes["delete"] == 1  # The rule that is given up; machines are kept.
    assert stack.engine.up(ignore).changed == 0
    assert script(google) == old_script
    stack.redeclare(training={"job": "next"})
    assert "replace" in stack.engine.up(ignore).changes
    assert script(google) == startup_script("vm.sh")
    stack.engine.destroy(ignore)
    assert cloud.status()["resources"] == before
