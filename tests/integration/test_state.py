"""Living with a stack's state: changes from outside, and updates that are killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import requests

from bench.killpoints import Killer
from tpustack.engine import Engine
from tpustack.localcloud import LocalCloudCommand
from tpustack.project import ROOT

Deploy = Callable[..., Engine]
Pulumi = Callable[..., "subprocess.Popen[str]"]
COMPUTE = "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local"
VM = f"{COMPUTE}/zones/us-central1-b/instances/tpu-stack-local-vm"


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def test_a_change_from_outside_is_seen_by_refresh_and_undone_by_up(
    deploy: Deploy, google: requests.Session
) -> None:
    engine = deploy(labels={"team": "vision"})
    engine.up(ignore)
    vm = google.get(VM).json()
    labels = {**vm["labels"], "team": "audio"}
    change = {"labels": labels, "labelFingerprint": vm["labelFingerprint"]}
    google.post(f"{VM}/setLabels", json=change).raise_for_status()
    assert engine.refresh(ignore)["update"] == 1
    assert engine.up(ignore).changes["update"] == 1
    assert google.get(VM).json()["labels"]["team"] == "vision"
    engine.destroy(ignore)


CREATED_AT_ONCE = {
    "storage:Bucket": "storage.buckets.insert",
    "compute:Network": "compute.networks.insert",
    "serviceaccount:Account": "iam.projects.serviceAccounts.create",
}


DESTROYED_AT_ONCE = "dev"


# Each on another of the repository's stack files; the other tests are on `local`.
@pytest.mark.parametrize(
    ("stack", "calls"),
    [
        ("dev", CREATED_AT_ONCE),
        ("staging", {"tpu:V2Vm": "tpu.projects.locations.nodes.create"}),
        ("prod", {"compute:Instance": "compute.instances.insert"}),
    ],
)
def test_what_google_makes_for_a_killed_update_is_found_and_leaves_nothing(
    stack: str, calls: dict[str, str], deploy: Deploy, cloud: LocalCloudCommand, pulumi: Pulumi
) -> None:
    before = cloud.status()["resources"]
    engine = deploy(stack, project="tpu-stack-local", bucket={"forceDestroy": True})
    # Google makes what the engine, dead by then, has asked for.
    for method in calls.values():
        cloud.run("faults", "add", method, "--status", "0", "--delay", "4", "--count", "1")
    options = ("--yes", "--skip-preview", "--non-interactive", "--color=never")
    update = pulumi("up", *options, stack=stack)
    kill_while_it_creates(list(calls), update)
    for method in calls.values():
        await_call(method, cloud)
    found = engine.recover(ignore)
    assert all(any(kind.partition(":")[2] in urn for urn in found) for kind in calls)
    if stack != DESTROYED_AT_ONCE:
        engine.up(ignore)
        assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before


def kill_while_it_creates(kinds: list[str], update: subprocess.Popen[str]) -> None:
    assert update.stdout is not None
    for line in update.stdout:
        kinds = [kind for kind in kinds if not re.search(rf"gcp:{kind} .* creating", line)]
        if not kinds:
            # The engine writes its state before it asks the provider, which then asks Google.
            time.sleep(0.5)
            update.kill()
            break
    assert update.wait() == -signal.SIGKILL


def await_call(method: str, cloud: LocalCloudCommand) -> None:
    deadline = time.monotonic() + 20
    while f" {method} " not in cloud.run("logs", "requests"):
        assert time.monotonic() < deadline, f"{method} was never called"
        time.sleep(0.1)


def test_a_stack_that_is_killed_again_and_again_converges_and_leaves_nothing(
    deploy: Deploy, cloud: LocalCloudCommand, project: Path, environment: Mapping[str, str]
) -> None:
    before = cloud.status()["resources"]
    life = Killer(project, environment).live(deploy(), seed=1, kills=7)
    assert (len(life.points), life.changes_after, life.processes_left) == (7, 0, 0)
    assert cloud.status()["resources"] == before


def test_a_bucket_that_is_there_already_is_imported_and_kept_as_it_is(
    deploy: Deploy, google: requests.Session, project: Path, pulumi: Pulumi
) -> None:
    name = "tpu-stack-local-tpu-stack-local"
    storage = "https://storage.googleapis.com/storage/v1/b"
    bucket = {"name": name, "location": "US-CENTRAL1"}
    google.post(f"{storage}?project=tpu-stack-local", json=bucket).raise_for_status()
    made = google.get(f"{storage}/{name}").json()["timeCreated"]
    engine = deploy()
    (project / "import.json").write_text(json.dumps(documented_import(name)))
    run = pulumi(
        *("import", "--file=import.json", "--yes", "--generate-code=false", "--protect=false"),
        *("--skip-preview", "--non-interactive"),
    )
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert engine.up(ignore).changes["update"] >= 1
    assert google.get(f"{storage}/{name}").json()["timeCreated"] == made
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)


def documented_import(bucket: str) -> dict[str, object]:
    """The file on the page, for a bucket of that name."""
    text = (ROOT / "docs" / "state.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    loaded: dict[str, object] = json.loads(block.replace("BUCKET", bucket))
    return loaded
