"""`tpustack goodput` shows where a job's time went, and what that has cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client
from tests.unit.tpustack.conftest import Run
from tpu_agent.jobs.queue import Job, Outcome, Spec
from tpu_core.bucket import Bucket
from tpu_core.ledger import FINISHED, PARTS, Entry
from tpu_infra.catalog import Catalog
from tpu_infra.cost import of_stack
from tpustack import goodput
from tpustack.cloud.google import Google
from tpustack.engine import backend
from tpustack.jobs import queue as place
from tpustack.stacks import load

HOUR = 3600.0
SECONDS = dict.fromkeys(PARTS, 0.0) | {"compute": 1800.0, "load": 600.0}


def agent(now: float) -> str:
    """What the agent wrote: the TPU was preempted, and recreated within half an hour."""
    events = [
        {"at": now, "tpu": "t", "state": "ready", "cause": ""},
        {"at": now + HOUR, "tpu": "t", "state": "recovering", "cause": "PREEMPTED"},
        {"at": now + 1.5 * HOUR, "tpu": "t", "state": "provisioning", "cause": "PREEMPTED"},
        {"at": now + 2 * HOUR, "tpu": "t", "state": "ready", "cause": ""},
    ]
    return json.dumps({"format": 1, "machine": "vm", "seen": now + 3 * HOUR, "events": events})


def ledger(now: float) -> dict[str, str]:
    first = Entry(now, HOUR, 0, 100, SECONDS, "vm")
    second = Entry(now + 2 * HOUR, HOUR, 80, 200, SECONDS, "vm", FINISHED)
    return {
        "1.json": first.to_json(),
        "2.json": second.to_json(),
        "3.json": "{",
        "tpus-1.json": agent(now),
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with the ledger of two starts, and garbage."""
    folder = tmp_path / "model" / "ledger"
    folder.mkdir(parents=True)
    for name, text in ledger(0.0).items():
        (folder / name).write_text(text)
    return tmp_path / "model"


def test_the_table_adds_up_and_garbage_is_named(run: Run, model: Path) -> None:
    done = run("goodput", str(model))
    assert done.code == 0
    assert "goodput 30.0%: 200 steps in 2 starts, 20 lost" in done.out
    assert "100.0%" in done.out
    assert "PREEMPTED" in done.out
    assert "3.json is not a ledger file and is ignored" in done.err


def test_programs_get_the_same_as_json(run: Run, model: Path) -> None:
    content = json.loads(run("goodput", str(model), "--json").out)
    assert content["wall_seconds"] == sum(content["seconds"].values()) == 3 * HOUR
    assert content["seconds"]["lost"] == 360.0
    assert content["seconds"]["recovering"] == content["seconds"]["provisioning"] == HOUR / 2
    assert content["causes"]["PREEMPTED"] == 360 + HOUR + 600 + 1200
    assert content["tpus"]["t"]["ready"] == 2 * HOUR
    assert content["cost"] is None
    assert len(content["problems"]) == 1


def test_a_directory_without_a_ledger_is_told(run: Run, tmp_path: Path) -> None:
    done = run("goodput", str(tmp_path))
    assert done.code == 1
    assert "no training has written a ledger there" in done.err


def test_a_path_that_is_not_there_is_wrong_input(run: Run, tmp_path: Path) -> None:
    done = run("goodput", str(tmp_path / "nosuch"))
    assert (done.code, "nosuch is not a folder" in done.err) == (2, True)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A bucket with a job's ledger."""
    cloud = LocalCloud(tmp_path / "home", clock=(clock := VirtualClock()))
    cloud.start()
    client = Client(cloud)
    client.post(
        "storage.googleapis.com/storage/v1/b",
        {"name": "a-bucket", "location": "US-CENTRAL1"},
        project="tpu-stack-local",
    )
    begun = clock.now()
    # The first is the folder's own mark, which TensorFlow writes.
    for name, text in {"": "", **ledger(begun)}.items():
        path = f"jobs/a-job/ledger/{name}"
        client.session.post(
            "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o",
            params={"uploadType": "media", "name": path},
            data=text,
            timeout=30,
        ).raise_for_status()
    monkeypatch.setattr(goodput, "Google", lambda: Google(client.session))
    yield client
    cloud.stop()


def test_a_ledger_is_read_from_a_bucket(run: Run, bucket: Client) -> None:
    done = run("goodput", "gs://a-bucket/jobs/a-job/", "--json")
    content = json.loads(done.out)
    assert content["wall_seconds"] == pytest.approx(3 * HOUR, abs=5)
    assert content["goodput"] == pytest.approx((3600 - 360) / (3 * HOUR), abs=0.001)
    assert content["problems"] == [
        "gs://a-bucket/jobs/a-job/ledger/3.json is not a ledger file and is ignored"
    ]


def test_a_file_deleted_while_the_ledger_is_read_is_no_garbage(
    run: Run, bucket: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Bucket.read
    monkeypatch.setattr(
        Bucket, "read", lambda self, path: None if "3.json" in path else read(self, path)
    )
    done = run("goodput", "gs://a-bucket/jobs/a-job/", "--json")
    assert json.loads(done.out)["problems"] == []


def test_a_job_of_the_queue_is_told_by_its_name_with_why_its_tries_ended(
    project: Path, run: Run, bucket: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed trainer can't write that its TPU was preempted; the queue knows."""
    monkeypatch.setattr(place, "Google", lambda: Google(bucket.session))
    monkeypatch.setattr(place, "_bucket_of_stack", lambda *_, **__: "a-bucket")
    queue = place.open_queue("dev", None)
    clock = bucket.local_cloud.cloud.clock
    assert isinstance(clock, VirtualClock)
    begun = clock.now()
    killed = Entry(begun, 100.0, 0, 50, dict.fromkeys(PARTS, 0.0) | {"compute": 100.0}, "vm")
    again = replace(killed, begin=begun + 600.0, first_step=40, last_step=90)
    for number, one in enumerate((killed, again)):
        clock.advance(one.end - clock.now())
        queue.store.write(f"jobs/long/model/ledger/{number}.json", one.to_json().encode())
    job = Job("long", "1", Spec("train"), begun).started("r", "vm", "t", begun)
    job = job.after_try(Outcome("preempted", None, "the TPU is gone"), begun + 110.0)
    queue.add(job.started("r", "vm", "t", begun + 590.0))
    content = json.loads(run("goodput", "long", "--stack", "dev", "--json").out)
    assert content["steps"] == 90
    assert content["causes"]["preempted"] >= 500
    assert content["cost"]
    wrong = run("goodput", "gs://a-bucket/jobs/long", "--stack", "dev")
    assert "'gs://a-bucket/jobs/long' is not a job name" in wrong.err


def test_a_stacks_job_is_told_with_what_it_cost(
    project: Path, run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TPU costs nothing while Google recreates it; the machine that waits does."""
    monkeypatch.setattr(backend, "outputs_of", lambda stack: {"job_url": str(model)})
    content = json.loads(run("goodput", "--stack", "dev", "--json").out)
    estimate = of_stack(load("dev"), "dev", Catalog())
    hour = estimate.configured.hour
    (tpu,) = [
        line.configured.amount for line in estimate.lines if line.part == "TPU" and line.configured
    ]
    cost = content["cost"]
    assert Decimal(cost["hour"]) == hour
    assert Decimal(cost["total"]) == pytest.approx(2 * hour + hour - tpu)
    assert Decimal(cost["step"]) == pytest.approx(Decimal(cost["total"]) / 200)
    assert Decimal(cost["states"]["recovering"]) == pytest.approx((hour - tpu) / 2)
    done = run("goodput", "--stack", "dev")
    assert " an hour, " in done.out
    assert " a thousand steps" in done.out
