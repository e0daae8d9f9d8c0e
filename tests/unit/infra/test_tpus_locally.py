"""What the checks let through, the local cloud's TPU API takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from infra.checks import find_problems
from infra.settings.parse import parse
from infra.settings.problems import SettingsError
from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client

from .conftest import Engine, Run, config, context_of
from .tpu_settings import CATALOG, placed_tpus

PROJECT = "projects/tpu-stack-local"
COMPUTE = f"compute.googleapis.com/compute/v1/{PROJECT}"
ACCOUNT = "tpu-stack-test-sa"


@pytest.fixture(scope="module")
def local_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A cloud in which nothing is ever done: its clock stands, and operations take their time."""
    home = tmp_path_factory.mktemp("cloud")
    cloud = LocalCloud(home, clock=VirtualClock(), latency="real")
    cloud.start()
    yield cloud
    cloud.stop()


@pytest.fixture(scope="module")
def google(local_cloud: LocalCloud) -> Client:
    """Its client, with the account, snapshot and disks that stacks of these tests name."""
    clock = local_cloud.cloud.clock
    assert isinstance(clock, VirtualClock)
    api = Client(local_cloud)
    services = f"serviceusage.googleapis.com/v1/{PROJECT}/services"
    for service in ("tpu", "compute", "iam"):
        api.post(f"{services}/{service}.googleapis.com:enable", {})
    clock.advance(600)
    api.post(f"iam.googleapis.com/v1/{PROJECT}/serviceAccounts", {"accountId": ACCOUNT})
    for family, tpu in {tpu.family: tpu for tpu in CATALOG.accelerators.values()}.items():
        for zone in {
            z for a in CATALOG.accelerators.values() if a.family == family for z in a.zones
        }:
            kind = tpu.disk_types[-1]
            body = {
                "name": family,
                "type": f"{PROJECT}/zones/{zone}/diskTypes/{kind}",
                "sizeGb": "50",
                **({"accessMode": "READ_ONLY_MANY"} if kind == "hyperdisk-ml" else {}),
            }
            api.post(f"{COMPUTE}/zones/{zone}/disks", body)
    source = f"{PROJECT}/zones/us-central1-b/disks/v2"
    api.post(f"{COMPUTE}/global/snapshots", {"name": "s", "sourceDisk": source})
    clock.advance(600)
    return api


@given(placed=placed_tpus())
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
def test_what_the_checks_let_through_the_local_cloud_takes(
    placed: tuple[str, dict[str, Any]],
    run: Run,
    root: Path,
    google: Client,
    local_cloud: LocalCloud,
) -> None:
    zone, tpu = placed
    stack = config(zone=zone, tpu=tpu, network={"create": False})
    try:
        parsed = parse(stack, "test")
    except SettingsError:
        return
    if problems := find_problems(parsed, context_of(parsed, root)):
        assert all(problem.why and problem.cure for problem in problems)
        return
    engine, _ = run(stack)
    try:
        make(engine, zone, google)
    finally:
        forget(local_cloud)


def make(engine: Engine, zone: str, google: Client) -> None:
    """Asks for disks and TPUs as the provider does; the client fails for what is refused."""
    for disk in engine.of("Disk"):
        given = disk.inputs
        body = {
            "name": given["name"],
            "type": f"{PROJECT}/zones/{zone}/diskTypes/{given['type']}",
            "sizeGb": str(given["size"]) if given.get("size") else None,
            "sourceSnapshot": ours(given.get("snapshot")),
            "accessMode": given.get("accessMode"),
        }
        google.post(
            f"{COMPUTE}/zones/{zone}/disks", {key: v for key, v in body.items() if v is not None}
        )
    at = f"tpu.googleapis.com/v2alpha1/{PROJECT}/locations/{zone}"
    for vm in engine.of("V2Vm"):
        given = ours(vm.inputs)
        given["serviceAccount"]["scope"] = given["serviceAccount"].pop("scopes")
        node = {key: given[key] for key in given if key not in ("name", "project", "zone")}
        google.post(f"{at}/nodes", node, nodeId=given["name"])
    queued = "pulumi-python:dynamic/tpu:QueuedResource"
    for entry in (item for item in engine.resources if item.kind == queued):
        request = ours(entry.inputs["request"])
        google.post(f"{at}/queuedResources", request, queuedResourceId=entry.inputs["name"])


def ours(value: Any) -> Any:
    """In the project of the local cloud."""
    return json.loads(json.dumps(value).replace("some-project", "tpu-stack-local"))


def forget(local_cloud: LocalCloud) -> None:
    store = local_cloud.cloud.store
    for kind in ("tpu-node", "tpu-queued-resource"):
        for name, _ in store.items(kind):
            store.delete(kind, name)
    for name, _ in store.items("compute"):
        if "/disks/tpu-stack-test" in name:
            store.delete("compute", name)
