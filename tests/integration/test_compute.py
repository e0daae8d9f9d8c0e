"""A TPU that is a machine of Compute Engine, on the real engine: it runs jobs and comes back."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import requests
import yaml

from localcloud.machines.machines import _GRACE
from localcloud.testing import Session
from tests.patience import PATIENCE, until
from tests.sandbox import make_trainer
from tpu_core import ledger as ledgers
from tpu_core.ledger import File
from tpu_infra.catalog import Catalog
from tpu_training.goodput.account import account
from tpustack import stacks
from tpustack.cloud import google as google_client
from tpustack.commands import recovery
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

ZONE = "us-east5-a"
INSTANCES = (
    "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local/zones/us-east5-a/instances"
)
TPU = {"acceleratorType": "ct6e-standard-4t", "capacity": "spot"}
MAIN = """
import os
print("chips of", os.environ["TPU_NAME"], "for", os.environ["PJRT_DEVICE"], flush=True)
"""


def ignore(line: str) -> None:
    """The engine's output is not what this test looks at."""


def run_job(
    cloud: LocalCloudCommand, bucket_url: str, tmp_path: Path, name: str, main: str = MAIN
) -> str:
    """Submit a job of JAX and return its whole log."""
    work = tmp_path / name
    work.mkdir()
    (work / "main.py").write_text(main)
    tpustack = (sys.executable, "-m", "tpustack", "job")
    where = ("--bucket", bucket_url)
    about = ("--name", name, "--framework", "jax", "--dir", work)
    for words in (
        ("submit", *about, "--command", "python main.py", *where),
        ("logs", name, "--follow", *where),
    ):
        done = subprocess.run(
            [*tpustack, *words],
            env={**os.environ, **cloud.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def deploy_machine(deploy: Callable[..., Stack], trainer: Path) -> Callable[..., Stack]:
    """Deploy a machine with a TPU that runs jobs."""
    training = {"runOn": "tpu", "wheel": str(trainer)}
    jobs = {"enabled": True}
    settings = {"architecture": "compute", "zone": ZONE, "vm": {}, "training": training}
    return functools.partial(deploy, **settings, jobs=jobs)


def test_a_spot_machine_runs_jobs_is_recreated_when_google_takes_it_and_leaves_nothing(
    deploy_machine: Callable[..., Stack],
    cloud: LocalCloudCommand,
    google: requests.Session,
    tmp_path: Path,
) -> None:
    before = cloud.status()["resources"]
    engine = deploy_machine(tpu=TPU)
    engine.up(ignore)
    outputs = engine.outputs()
    assert outputs["tpu_name"] == outputs["vm_name"] == "tpu-stack-local-tpu"
    assert engine.up(ignore).changed == 0
    (made,) = google.get(INSTANCES).json()["items"]
    assert made["networkInterfaces"][0]["nicType"] == "GVNIC"
    assert made["scheduling"]["instanceTerminationAction"] == "DELETE"

    def run(name: str) -> str:
        return run_job(cloud, outputs["bucket_url"], tmp_path, name)

    assert "chips of tpu-stack-local-tpu for TPU\n" in run("first")

    cloud.run("faults", "preempt", "tpu-stack-local-tpu")
    until(lambda: not google.get(INSTANCES).json().get("items"), "Google has taken it")
    # As `tpustack recover` does for what `lost_vms` has found.
    resources = engine.resources()
    (urn,) = (each["urn"] for each in resources if each["type"] == "gcp:compute/instance:Instance")
    engine.renew([urn], ignore)
    (again,) = google.get(INSTANCES).json()["items"]
    assert again["id"] != made["id"]
    assert "chips of tpu-stack-local-tpu for TPU\n" in run("second")

    engine.destroy(ignore)
    assert cloud.status()["resources"] == before


def test_a_migrated_stack_is_one_machine_next_to_the_bucket_that_it_had(
    deploy: Callable[..., Stack],
    pulumi: Callable[..., subprocess.Popen[str]],
    google: requests.Session,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6"
    tpu = {"acceleratorType": "v6e-4", "runtimeVersion": runtime, "capacity": "spot"}
    engine = deploy(zone=ZONE, tpu=tpu, jobs={"enabled": True})
    engine.up(ignore)
    bucket = engine.outputs()["bucket_name"]
    objects = f"https://storage.googleapis.com/storage/v1/b/{bucket}/o"
    upload = objects.replace("/storage/v1", "/upload/storage/v1")
    google.post(upload, params={"uploadType": "media", "name": "kept"}, data=b"a checkpoint")
    monkeypatch.setattr(stacks, "root", lambda: project)
    document, notes = stacks.migrated("local", Catalog())
    (command,) = re.findall(r"`pulumi (destroy [^`]*)`", "\n".join(notes))
    words = shlex.split(command.replace("--stack local ", ""))
    deleting = pulumi(*words, "--yes", "--skip-preview")
    said = deleting.communicate(timeout=PATIENCE)[0]
    assert deleting.returncode == 0, said
    assert google.get(INSTANCES).json().get("items", []) == []
    stacks.path_of("local").write_text(yaml.safe_dump(document), encoding="utf-8")
    engine.up(ignore)
    outputs = engine.outputs()
    (made,) = google.get(INSTANCES).json()["items"]
    assert made["machineType"].endswith("/ct6e-standard-4t")
    assert outputs["bucket_name"] == bucket
    assert google.get(f"{objects}/kept", params={"alt": "media"}).content == b"a checkpoint"
    types = {each["type"] for each in engine.resources()}
    assert not {each for each in types if each.startswith("gcp:tpu") or "QueuedResource" in each}
    assert engine.up(ignore).changed == 0


@pytest.mark.parametrize(
    ("zone", "tpu", "asked"),
    [
        (
            "us-central1-c",
            {
                "acceleratorType": "tpu7x-standard-4t",
                "capacity": "flex-start",
                "queued": {"runHours": 1},
            },
            {"provisioningModel": "FLEX_START", "maxRunDuration": {"seconds": "3600"}},
        ),
        (
            ZONE,
            {
                "acceleratorType": "ct6e-standard-8t",
                "capacity": "reserved",
                "queued": {"reservation": "ours"},
                "externalIps": True,
                "secureBoot": True,
            },
            {"provisioningModel": "STANDARD", "onHostMaintenance": "TERMINATE"},
        ),
    ],
)
def test_each_way_to_buy_a_machine_is_what_google_is_asked_for_and_stays(
    deploy_machine: Callable[..., Stack],
    google: requests.Session,
    zone: str,
    tpu: dict[str, Any],
    asked: dict[str, Any],
) -> None:
    engine = deploy_machine(zone=zone, tpu=tpu)
    engine.up(ignore)
    (made,) = google.get(INSTANCES.replace(ZONE, zone)).json()["items"]
    assert asked.items() <= made["scheduling"].items()
    if tpu["capacity"] == "reserved":
        assert made["reservationAffinity"]["values"] == ["ours"]
        assert made["advancedMachineFeatures"]["threadsPerCore"] == 1
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert "items" not in google.get(INSTANCES.replace(ZONE, zone)).json()


REGION = "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local/regions/us-east5"
GROUPS = INSTANCES.replace("/instances", "/instanceGroupManagers")
TEMPLATES = INSTANCES.replace("zones/us-east5-a/instances", "global/instanceTemplates")
# Host 0 waits for host 1, as JAX does: a job is over when host 0 is.
TELLS = """
import os, pathlib, time
for_all = ("JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")
number = os.environ["JAX_PROCESS_ID"]
print("host", number, *(os.environ[name] for name in for_all), flush=True)
met = pathlib.Path({met!r})
if number == "1":
    met.touch()
while not met.exists():
    time.sleep(0.1)
"""


def test_a_slice_of_machines_runs_jobs_on_all_of_them_and_loses_one_for_good(
    deploy_machine: Callable[..., Stack],
    cloud: LocalCloudCommand,
    google: requests.Session,
    tmp_path: Path,
) -> None:
    engine = deploy_machine(tpu={"acceleratorType": "ct5p-hightpu-4t"})
    engine.up(ignore)
    outputs = engine.outputs()
    name, parts = outputs["tpu_name"], make_slice(google, outputs["tpu_name"])
    main = TELLS.format(met=str(tmp_path / "met"))
    said = run_job(cloud, outputs["bucket_url"], tmp_path, "all", main)
    assert f"host 0 2 {name}-001:8476\n" in said
    bucket = outputs["bucket_url"].removeprefix("gs://")
    path = "jobs%2Fall%2Fhosts%2F0001%2F1.log"
    url = f"https://storage.googleapis.com/storage/v1/b/{bucket}/o/{path}?alt=media"
    until(lambda: google.get(url).ok, "host 1 has reported")
    assert f"host 1 2 {name}-001:8476\n" in google.get(url).text

    cloud.run("faults", "preempt", f"{name}-002")
    until(lambda: len(google.get(INSTANCES).json().get("items", [])) <= 1, "Google has taken it")
    delete_slice(google, parts)
    # The stack's own machine was deleted above.
    engine.refresh(ignore)
    engine.destroy(ignore)


# Host 1 fails once, when all have begun; host 0 is done when all have begun again.
TRAINS = """
import os, pathlib, sys, time
number = os.environ.get("JAX_PROCESS_ID", "alone")
hosts = os.environ.get("JAX_NUM_PROCESSES", "0")
files = [pathlib.Path({folder!r}, f"starts-{{each}}") for each in range(int(hosts))]
own = pathlib.Path({folder!r}, f"starts-{{number}}")
with own.open("a") as file:
    print(hosts, os.environ.get("JAX_COORDINATOR_ADDRESS"), *sys.argv[1:], file=file)
count = lambda file: len(file.read_text().splitlines()) if file.exists() else 0
while number != "0" or min(map(count, files)) < 2:
    if number == "1" and count(own) == 1 and all(map(count, files)):
        sys.exit(1)
    time.sleep(0.1)
"""


def test_a_slice_of_four_machines_trains_on_all_of_them_and_restarts_all_if_one_fails(
    deploy: Callable[..., Stack], google: requests.Session, tmp_path: Path
) -> None:
    (tmp_path / "wheel").mkdir()
    wheel = make_trainer(tmp_path / "wheel", TRAINS.format(folder=str(tmp_path)))
    engine = deploy(
        architecture="compute",
        zone=ZONE,
        vm={},
        tpu={"acceleratorType": "ct5p-hightpu-4t"},
        training={"runOn": "tpu", "wheel": str(wheel)},
    )
    engine.up(ignore)
    outputs = engine.outputs()
    name, parts = outputs["tpu_name"], make_slice(google, outputs["tpu_name"], hosts=4)
    bucket = outputs["bucket_url"].removeprefix("gs://")
    url = f"https://storage.googleapis.com/storage/v1/b/{bucket}/o/jobs%2Ftrain%2Ffinished"
    until(lambda: google.get(url).ok, "the training has finished")
    for number in range(4):
        starts = (tmp_path / f"starts-{number}").read_text().splitlines()
        assert len(starts) == 2
        assert all(start.startswith(f"4 {name}-001:8476 train-and-evaluate") for start in starts)
        assert all("--tpu=local" in start and "--backend=jax" in start for start in starts)
    delete_slice(google, parts)
    engine.refresh(ignore)
    engine.destroy(ignore)


# The real trainer. Its files are on this computer, where the names of machines don't resolve.
TRAINER = """
import os, runpy, sys
sys.path.remove(os.environ.pop("PYTHONPATH"))
del sys.modules["tpu_training"]
if "JAX_COORDINATOR_ADDRESS" in os.environ:
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"):
        os.environ[name] = "127.0.0.1:{port}"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.argv += ["--" + name + "={program}" for name in ("data", "model", "callback")]
runpy.run_module("tpu_training", run_name="__main__", alter_sys=True)
"""
# The least that can be trained, at a pace at which a machine can be lost in between.
PROGRAM = """
import pathlib
import time
import tensorflow as tf
import tpu_training

class_names = ["even", "odd"]

def dataset(split, context):
    draw = lambda number: (tf.fill((2, 2, 1), tf.cast(number, tf.uint8)), number % 2)
    return tf.data.Dataset.range(32).map(draw) if split == "train" else None

class Line(tf.Module):
    def __init__(self, *_):
        self.kernel = tf.Variable(tf.ones((4, 2)) / 99)

    def __call__(self, features, training):
        return tf.reshape(tf.cast(features, tf.float32), (-1, 4)) @ self.kernel

class Rests(tpu_training.Callback):
    def before_loop(self, step, report):
        pathlib.Path(__file__).with_suffix(".step").write_text(str(step))
        time.sleep(0.3)

create_model = lambda params, spec, seed: Line()
create_callbacks = lambda job: [Rests()]
"""
STEPS = 60
PARAMETERS = ("steps_per_loop=2", "checkpoint_interval=4", "snapshot_interval=0")


def test_a_preempted_spot_slice_is_recreated_whole_and_trains_on_from_its_checkpoint(
    deploy: Callable[..., Stack],
    cloud: LocalCloudCommand,
    google: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, wheels = tmp_path / "program.py", tmp_path / "wheel"
    program.write_text(PROGRAM)
    wheels.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    wheel = make_trainer(wheels, TRAINER.format(port=port, program=program))
    args = [f"--{each}" for each in (f"steps={STEPS}", "global_batch_size=8", *PARAMETERS)]
    engine = deploy(
        architecture="compute",
        zone=ZONE,
        vm={},
        tpu={"acceleratorType": "ct5p-hightpu-4t", "capacity": "spot"},
        training={"runOn": "tpu", "wheel": str(wheel), "args": args},
    )
    engine.up(ignore)
    outputs = engine.outputs()
    name, parts = outputs["tpu_name"], make_slice(google, outputs["tpu_name"])
    read = functools.partial(read_objects, google, outputs["bucket_name"])

    def machines() -> set[str]:
        return {each["id"] for each in google.get(INSTANCES).json().get("items", ())}

    until(lambda: read(r"/ckpt-8\.index$"), "two checkpoints are whole")
    before = machines()
    monkeypatch.setitem(_GRACE["none"], "preempt", 30.0)
    cloud.run("faults", "preempt", f"{name}-002")
    until(lambda: len(machines()) == 1, "Google has taken it")

    def renew(urns: list[str], line: Callable[[str], None], replaced: tuple[str, ...]) -> None:
        assert replaced == ("urn::tpu",)
        delete_slice(google, parts[:1])
        until(lambda: google.post(GROUPS, json=group_of(name)).ok, "the group is created")

    # A newer provider has the group in the stack's state, and sends these requests.
    state = {"project": "tpu-stack-local", "zone": ZONE, "name": name, "targetSizePolicies": [{}]}
    kind = "gcp:compute/instanceGroupManager:InstanceGroupManager"
    resources = [{"urn": "urn::tpu", "type": kind, "outputs": state}]
    stack = SimpleNamespace(outputs=lambda: outputs, resources=lambda: resources, renew=renew)
    monkeypatch.setattr(google_client, "_transport", lambda: google)
    recovery._bring_back(stack)  # type: ignore[arg-type]
    until(lambda: read(r"/finished$"), "the training has finished")
    assert len(machines() - before) == len(machines()) == 2
    first, last = (ledger := ledgers.read(read(r"/ledger/.+json$"))).entries
    assert 8 <= first.last_step == last.first_step < last.last_step == STEPS
    total = account(ledger)
    assert (total.starts, total.steps, total.lost_steps) == (2, STEPS, 0)
    assert total.seconds["away"] > 0
    assert total.causes["another host has to end"] > total.seconds["away"]
    ((_, metrics),) = read(r"/metrics\.json$")
    assert json.loads(metrics)["replicas"] == 2
    delete_slice(google, parts)
    engine.refresh(ignore)
    engine.destroy(ignore)


def test_flex_start_saves_a_checkpoint_before_google_deletes_the_machine(
    deploy: Callable[..., Stack],
    cloud: LocalCloudCommand,
    google: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "wheel").mkdir()
    wheel = make_trainer(tmp_path / "wheel", TRAINER.format(port=0, program=program))
    # So that the only checkpoint is the one of the end.
    params = ("steps=9000", "global_batch_size=8", "steps_per_loop=2", "checkpoint_interval=9000")
    args = [f"--{each}" for each in (*params, "snapshot_interval=0")]
    flex = {"capacity": "flex-start", "queued": {"runHours": 0.5}}
    engine = deploy(
        architecture="compute",
        zone=ZONE,
        vm={},
        tpu={"acceleratorType": "ct5p-hightpu-4t", **flex},
        training={"runOn": "tpu", "backend": "jax", "wheel": str(wheel), "args": args},
    )
    engine.up(ignore)
    read = functools.partial(read_objects, google, engine.outputs()["bucket_name"])
    step = program.with_suffix(".step")
    until(lambda: step.exists() and int(step.read_text() or 0) >= 4, "it trains")
    assert not read(r"/ckpt-\d+\.index$")
    monkeypatch.setitem(_GRACE["none"], "stop", 30.0)
    # Not by an hour, when the machine's tokens would end, too.
    cloud.run("forward", "1800")
    until(lambda: not google.get(INSTANCES).json().get("items"), "its time is up")
    (checkpoint,) = read(r"/ckpt-\d+\.index$")
    (entry,) = (ledger := ledgers.read(read(r"/ledger/.+json$"))).entries
    assert checkpoint.name.endswith(f"/ckpt-{entry.last_step}.index")
    assert entry.last_step >= int(step.read_text())
    assert account(ledger).lost_steps == 0
    # A refresh would find it gone; nothing of the stack waits for it.
    engine.refresh(ignore)
    engine.destroy(ignore)


def read_objects(google: requests.Session, bucket: str, pattern: str) -> list[File]:
    """Return the objects whose names have the pattern."""
    time.sleep(0.5)  # This process is also the cloud.
    url = f"https://storage.googleapis.com/storage/v1/b/{bucket}/o"
    names = [each["name"] for each in google.get(url).json().get("items", ())]
    found = [each for each in names if re.search(pattern, each)]
    texts = (google.get(f"{url}/{quote(each, safe='')}?alt=media").text for each in found)
    return [File(*each) for each in zip(found, texts, strict=True)]


def make_slice(google: requests.Session, name: str, hosts: int = 2) -> list[str]:
    """Turn a stack's one machine into a slice of several; return what it is made of.

    The machines are those of a stack, but no provider makes the group: 6.39 can't.
    """
    (alone,) = google.get(INSTANCES).json()["items"]
    google.delete(f"{INSTANCES}/{alone['name']}").raise_for_status()
    (interface,) = alone["networkInterfaces"]
    image = "ubuntu-os-accelerator-images/global/images/family"
    params = {
        "sourceImage": f"projects/{image}/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        "diskSizeGb": "200",
        "diskType": "pd-balanced",
    }
    spot = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    properties = {
        "machineType": "ct5p-hightpu-4t",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
        "networkInterfaces": [{key: interface[key] for key in ("network", "subnetwork")}],
        "scheduling": {"onHostMaintenance": "TERMINATE", **spot},
        **{key: alone[key] for key in ("metadata", "serviceAccounts", "tags")},
    }
    policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": f"2x2x{hosts}"}
    for url, body in (
        (TEMPLATES, {"name": "t", "properties": properties}),
        (f"{REGION}/resourcePolicies", {"name": "p", "workloadPolicy": policy}),
        (GROUPS, group_of(name, hosts)),
    ):
        google.post(url, json=body).raise_for_status()
    return [f"{GROUPS}/{name}", f"{REGION}/resourcePolicies/p", f"{TEMPLATES}/t"]


def group_of(name: str, hosts: int = 2) -> dict[str, Any]:
    return {
        "name": name,
        "baseInstanceName": f"{name}-###",
        "instanceTemplate": "global/instanceTemplates/t",
        "targetSize": hosts,
        "targetSizePolicy": {"mode": "BULK"},
        "resourcePolicies": {"workloadPolicy": "regions/us-east5/resourcePolicies/p"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }


def delete_slice(google: requests.Session, parts: list[str]) -> None:
    for url in parts:
        until(lambda: google.delete(url).ok, f"{url} is deleted")  # noqa: B023 - called at once
