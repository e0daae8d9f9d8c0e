"""A stack whose VM recreates a preempted TPU, on the real engine."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import requests
from click.testing import CliRunner

from localcloud.testing import Session
from tests.patience import PATIENCE, until
from tpu_agent.jobs.queue import Job, Queue, Spec
from tpu_core.bucket import Bucket
from tpu_core.ledger import File, Ledger, Span, read
from tpu_core.paths import STATE
from tpustack.cloud.google import Google
from tpustack.commands import recovery
from tpustack.commands.recovery import lost_tpus
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

from .imports import enable
from .test_limits import Limited

PLACE = "projects/tpu-stack-local"
NODES = f"https://tpu.googleapis.com/v2/{PLACE}/locations/us-central1-b/nodes"
VMS = f"https://compute.googleapis.com/compute/v1/{PLACE}/zones/us-central1-b/instances"
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


def ignore(line: str) -> None:
    """The engine's output is not what this test looks at."""


def ledger_of(google: requests.Session, job: str) -> Ledger:
    bucket, _, folder = job.removeprefix("gs://").partition("/")
    objects = f"https://storage.googleapis.com/storage/v1/b/{bucket}/o"
    found = google.get(objects, params={"prefix": f"{folder}/ledger/"}).json().get("items", [])
    names = [item["name"] for item in found if item["name"].endswith(".json")]
    texts = [google.get(f"{objects}/{quote(name, safe='')}?alt=media").text for name in names]
    ledger = read(File(name, text) for name, text in zip(names, texts, strict=True))
    assert not ledger.broken
    return ledger


def assert_that_nothing_differs(pulumi: Callable[..., subprocess.Popen[str]], stack: str) -> None:
    run = pulumi("preview", "--refresh", "--json", stack=stack)
    said, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said
    steps = {(step["op"], step["urn"]) for step in json.loads(said)["steps"]}
    assert {op for op, _ in steps} <= {"same", "refresh"}, steps


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

    def known_of(job: str, tpu: str) -> list[Span]:
        """What the ledger that `tpustack goodput` reads says of a TPU, without a gap."""
        found = [span for span in ledger_of(google, job).spans if span.tpu == tpu]
        assert all(one.end == other.begin for one, other in pairwise(found))
        return found

    def causes_of_loss() -> set[str]:
        return {span.cause for span in known_of(job, lost) if span.state == "recovering"}

    def all_ready() -> bool:
        states = [node["state"] for node in there().values()]
        return states == ["READY"] * len(first)

    before = cloud.status()["resources"]
    stack = "local-node" if form == "classic" else "local"
    if form == "classic":
        enable(google, "tpu")
    engine = deploy(stack, recovery={"enabled": True}, **FORMS[form])
    engine.up(ignore)
    job = engine.outputs()["job_url"]
    first = there()
    assert all_ready()
    lost = max(first)
    cloud.run("faults", "preempt", lost)
    made = first[lost]["createTime"]
    until(lambda: there().get(lost, first[lost])["createTime"] != made, "there is another TPU")
    until(all_ready, "it is READY")
    until(lambda: bool(causes_of_loss()), "the ledger names the cause")
    assert causes_of_loss() <= {"PREEMPTED", "SUSPENDED"}

    assert_that_nothing_differs(pulumi, stack)
    changes = engine.refresh(ignore)
    assert set(changes) <= {"same", "update"}, changes
    assert engine.up(ignore).changed == 0
    # What a person destroys stays destroyed.
    engine.destroy(ignore)
    if form != "classic":
        assert cloud.status()["resources"] == before
    assert there() == {}


def test_a_tpu_moves_to_where_there_is_capacity_sleeps_and_wakes_and_the_stack_knows_where_it_is(
    deploy: Callable[..., Stack],
    google: Session,
    cloud: LocalCloudCommand,
    pulumi: Callable[..., subprocess.Popen[str]],
) -> None:
    first, second = "us-central1-b", "us-central1-c"

    def sells(zone: str) -> None:
        cloud.run("faults", "stockout", zone, "none")
        (other,) = {first, second} - {zone}
        cloud.run("faults", "stockout", other, "v2-8")

    def ready_in(zone: str) -> bool:
        nodes = google.get(NODES.replace(first, zone)).json().get("nodes", [])
        return [node["state"] for node in nodes] == ["READY"]

    before = cloud.status()["resources"]
    queued = {"fallbackZones": [second], "zoneMinutes": 0.1}
    tpu = {**POD, "capacity": "spot", "queued": queued}
    limits, jobs = {"idleMinutes": 600}, {"enabled": True}
    engine = deploy(recovery={"enabled": True}, tpu=tpu, limits=limits, jobs=jobs)
    try:
        sells(second)
        engine.up(ignore)
        made = engine.outputs()
        assert (made["tpu_zone"], made["tpu_zones"]) == (second, [first, second])
        assert ready_in(second)
        assert_that_nothing_differs(pulumi, "local")
        sells(first)
        cloud.run("faults", "preempt", made["tpu_name"])
        until(lambda: ready_in(first), "there is another TPU")
    finally:
        for zone in (first, second):
            cloud.run("faults", "stockout", zone, "none")
    assert lost_tpus(Google(google), made) == {}, "it is found where it is before the state knows"
    assert_that_nothing_differs(pulumi, "local")
    engine.refresh(ignore)
    assert engine.up(ignore).changed == 0
    assert engine.outputs()["tpu_zone"] == first

    stack = Limited(google, cloud)
    stack.shorten(idleMinutes=0.01)
    until(lambda: not google.get(NODES).json().get("nodes"), "the idle TPU is deleted")
    stack.shorten(idleMinutes=600.0)
    queue = Queue(Bucket(made["bucket_name"], Google(google).exchange), print)
    queue.add(Job("wakes", "1", Spec("true"), time.time()))
    queue.ring()
    until(lambda: queue.summaries()["wakes"]["state"] == "succeeded", "the job ends")
    assert_that_nothing_differs(pulumi, "local")
    engine.refresh(ignore)
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before


Recover = Callable[..., str]


class Enough(Exception):
    """The loop has looked often enough."""


@pytest.fixture
def recover_(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Recover:
    """Runs `tpustack recover` on a stack until its loop waits, and returns what it said."""

    def run(engine: Stack, *options: str) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        mine = SimpleNamespace(stack=lambda name: engine)
        monkeypatch.setattr(recovery, "users_own", lambda: mine)
        monkeypatch.setattr(recovery, "repeat", partial(recovery.repeat, sleep=stop))
        done = CliRunner().invoke(recovery.recover_command, ["--stack", engine.name, *options])
        assert done.exception is None or isinstance(done.exception, Enough), done.output
        return done.output

    def stop(seconds: float) -> None:
        raise Enough

    return run


@pytest.mark.parametrize("form", ["plain", "queued slices", "classic"])
def test_where_no_machine_of_the_stack_recovers_a_loop_elsewhere_brings_its_tpu_back(
    deploy: Callable[..., Stack],
    google: requests.Session,
    cloud: LocalCloudCommand,
    trainer: Path,
    recover_: Recover,
    form: str,
) -> None:
    """A classic node has the VM, but its stack may go without the agent just as well."""
    settings = dict(FORMS[form])
    if form == "classic":
        enable(google, "tpu")
    else:
        run_on = {"runOn": "tpu", "wheel": str(trainer), "tensorflowVersion": "2.19.1"}
        settings["training"] = run_on
    engine = deploy("local-node" if form == "classic" else "local", **settings)
    engine.up(ignore)

    def made() -> dict[str, str]:
        nodes = google.get(NODES).json().get("nodes", [])
        return {n["name"]: n["createTime"] for n in nodes if n["state"] == "READY"}

    first = made()
    assert "The TPU" not in recover_(engine, "--loop")
    cloud.run("faults", "preempt", max(first).rpartition("/")[2])
    assert len(made()) < len(first)
    said = recover_(engine, "--loop")
    assert "The TPU is back." in said
    assert made().keys() == first.keys(), said
    assert made() != first
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert made() == {}


def test_a_preempted_vm_without_a_group_is_started_by_recover(
    deploy: Callable[..., Stack],
    google: requests.Session,
    cloud: LocalCloudCommand,
    recover_: Recover,
) -> None:
    engine = deploy(vm={"machineType": "n1-standard-2", "capacity": "spot"})
    engine.up(ignore)
    vm = engine.outputs()["vm_name"]
    cloud.run("faults", "preempt", vm)
    until(lambda: google.get(f"{VMS}/{vm}").json()["status"] == "TERMINATED", "it ends")
    assert "The VM is back." in recover_(engine)
    assert google.get(f"{VMS}/{vm}").json()["status"] == "RUNNING"
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)


def test_a_machine_with_a_tpu_runs_the_trainer_and_recover_makes_it_again(
    deploy: Callable[..., Stack],
    google: requests.Session,
    cloud: LocalCloudCommand,
    trainer: Path,
    recover_: Recover,
) -> None:
    engine = deploy(
        architecture="compute",
        zone="us-east5-a",
        vm={},
        tpu={"acceleratorType": "ct6e-standard-4t", "capacity": "spot"},
        limits={"timeToLiveHours": 8},
        training={"runOn": "tpu", "wheel": str(trainer), "tensorflowVersion": "2.19.1"},
    )
    engine.up(ignore)
    outputs = engine.outputs()
    mark = f"b/{outputs['bucket_name']}/o/jobs%2Ftrain%2Ffinished"
    finished = f"https://storage.googleapis.com/storage/v1/{mark}"
    until(lambda: google.get(finished).status_code == 200, "the training ends")
    machine = f"{VMS.replace('us-central1-b', 'us-east5-a')}/{outputs['tpu_name']}"
    first = google.get(machine).json()["id"]
    cloud.run("faults", "preempt", outputs["tpu_name"])
    until(lambda: google.get(machine).status_code == 404, "it ends")
    assert "The VM is back." in recover_(engine, "--loop")
    second = google.get(machine).json()
    assert second["id"] != first
    # Google counts the hours of each machine from its start, the bucket from the first one.
    assert second["scheduling"]["maxRunDuration"] == {"seconds": str(8 * 3600)}
    state = f"https://storage.googleapis.com/storage/v1/b/{outputs['bucket_name']}/o/"
    lives = google.get(state + quote(STATE, safe=""), params={"alt": "media"}).json()["lives"]
    assert len(lives[outputs["tpu_name"]]) == 1
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)


@pytest.mark.parametrize("how", ["preempted", "reset"])
def test_a_vm_that_is_lost_along_with_its_tpu_comes_back_and_recreates_the_tpu(
    deploy: Callable[..., Stack], google: requests.Session, cloud: LocalCloudCommand, how: str
) -> None:
    def made() -> str:
        (node,) = google.get(NODES).json().get("nodes") or [{"state": "gone"}]
        return str(node["createTime"]) if node["state"] == "READY" else ""

    managed = {"machineType": "n1-standard-2", "capacity": "spot", "instanceGroup": {}}
    changes = {"vm": managed} if how == "preempted" else {}
    engine = deploy(recovery={"enabled": True}, **changes)
    engine.up(ignore)
    vm = engine.outputs()["vm_name"]
    first = made()
    assert first
    if how == "preempted":
        cloud.run("faults", "preempt", vm)
    else:
        google.post(f"{VMS}/{vm}/reset").raise_for_status()
    cloud.run("faults", "preempt", "tpu-stack-local-tpu")
    until(lambda: made() not in ("", first), "there is another TPU")
    assert engine.refresh(ignore).get("delete", 0) == 0
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
