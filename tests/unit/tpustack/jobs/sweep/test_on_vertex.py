"""`tpustack job sweep --on vertex`: each trial is a custom job, and none is left behind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.tpustack.conftest import Run
from tests.unit.tpustack.jobs.conftest import BUCKET, EMAIL, JOBS, stack
from tpu_agent.jobs.queue import Job, Outcome, Queue, Spec
from tpustack.jobs import sweep
from tpustack.jobs.sweep import FAILED, PRUNED, Driver, Record, Sweep, Trial

from .test_driver import SWEEP

pytest.importorskip("optuna")

RATE = ("--param", "rate=1e-4..1e-1:log")
PLACE = {
    "project": "tpu-stack-local",
    "region": "us-central1",
    "tpu": "v2-8",
    "image": "python:3.11",
    "account": EMAIL,
    "network": "",
}
ON_VERTEX = replace(SWEEP, wanted=1, buckets=(BUCKET,), places={BUCKET: PLACE})


@pytest.fixture
def containers(
    queue: Queue, machines: FakeMachines, deployed: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Containers whose jobs succeed as soon as they are there."""
    monkeypatch.setattr(sweep, "_PAUSE", 0.05)
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            for name, job in queue.summaries().items():
                if job["state"] == "queued":
                    finish(queue, name)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    over.set()
    thread.join()


def finish(queue: Queue, name: str) -> None:
    def end(job: Job) -> Job | None:
        if not job.custom_job or job.is_over:
            return None
        begun = job.started("1", "m", "vertex", time.time())
        return begun.after_try(Outcome("exited", 0), time.time())

    queue.store.write(f"jobs/{name}/model/metrics.json", b'{"loss": 0.5}')
    queue.change(name, end)


def submitted(queue: Queue, sweep: Sweep = ON_VERTEX) -> Driver:
    record = Record(queue.store, sweep.name)
    record.write(sweep)
    made = Driver(sweep, record, {BUCKET: queue}, lambda _: None)
    made.step()
    return made


def test_each_trial_is_a_custom_job_of_the_stack_until_all_have_ended(
    run: Run, containers: None, client: Client
) -> None:
    asks = ("--on", "vertex", "--stack", "dev", "--spot", "--tpu", "v5litepod-4")
    more = ("-c", "python -V", *RATE, "--trials", "3", "--name", "s", "--json")
    done = run("job", "sweep", *asks, *more)
    assert done.code == 0, done.err
    assert [one["state"] for one in json.loads(done.out)["trials"]] == ["complete"] * 3
    made = client.get(JOBS)["customJobs"]
    assert {one["displayName"] for one in made} == {"s-000", "s-001", "s-002"}
    assert {one["jobSpec"]["scheduling"]["strategy"] for one in made} == {"SPOT"}
    assert {one["jobSpec"]["serviceAccount"] for one in made} == {EMAIL}
    # The stack's own machine runs no jobs, and none is missed.
    assert "no machine runs the jobs" not in done.err
    resumed = run("job", "sweep", "--resume", "s", "--stack", "dev")
    assert resumed.code == 0, resumed.err


def test_a_trial_that_vertex_ai_never_ran_fails_with_its_reason(
    queue: Queue, machines: FakeMachines, deployed: Path, cloud: LocalCloud
) -> None:
    zones = {f"us-central1-{letter}": ["*"] for letter in "abcf"}
    cloud.cloud.store.put("setting", "stockout", zones)
    made = submitted(queue)
    for _ in range(sweep._ASK_EVERY):
        made.step()
    (trial,) = made.sweep.trials
    assert trial.state == FAILED
    assert "Resources are insufficient in region: us-central1" in trial.why


def test_a_trial_is_submitted_again_if_the_command_was_killed_before_vertex_ai_had_it(
    queue: Queue, machines: FakeMachines, deployed: Path, client: Client
) -> None:
    trial = Trial(0, BUCKET, "s-000", {"rate": 0.1})
    queue.add(Job("s-000", "id", Spec("python main.py --rate=0.1", vertex=PLACE), 1.0))
    made = submitted(queue, replace(ON_VERTEX, trials=(trial,)))
    made.step()
    assert [one["displayName"] for one in client.get(JOBS)["customJobs"]] == ["s-000"]


def test_a_pruned_trial_that_has_not_started_is_cancelled_on_vertex_ai(
    queue: Queue, machines: FakeMachines, deployed: Path, client: Client
) -> None:
    made = submitted(queue)
    (trial,) = made.sweep.trials
    poor = replace(made.sweep, trials=(replace(trial, state=PRUNED),))
    record = Record(queue.store, poor.name)
    record.read()
    Driver(poor, record, {BUCKET: queue}, lambda _: None).run()
    (job,) = client.get(JOBS)["customJobs"]
    assert job["state"] == "JOB_STATE_CANCELLED"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", "x", "--tpu", "v4-8"), "--tpu: Vertex AI runs no job of ours on v4-8"),
        ((), "the stack's own training is not in the containers of Vertex AI"),
        (("-c", "x", "--bucket", "gs://b"), "--on vertex needs --stack NAME"),
        (("-c", "x", "--priority", "1"), "--after and --priority: not with --on vertex"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sweep_with_options_vertex_ai_does_not_support_is_refused(
    run: Run, queue: Queue, deployed: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = run("job", "sweep", "--on", "vertex", "--stack", "dev", *RATE, *arguments)
    assert done.code == 2
    assert said in done.err
    assert not list(queue.store.items(""))


def test_vertex_ai_options_are_refused_without_on_vertex(
    run: Run, queue: Queue, deployed: Path
) -> None:
    stack(deployed, {"enabled": True})
    done = run("job", "sweep", "--stack", "dev", "-c", "x", *RATE, "--spot")
    assert "--spot: only with --on vertex" in done.err
