"""`tpustack job submit --on vertex`: what goes to Vertex AI, how it ends, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localcloud import faults
from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import Principal
from localcloud.core.cloud import machine_powered_off
from localcloud.testing import Client
from tests.patience import until
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.tpustack.conftest import Done, Run
from tests.unit.tpustack.jobs.conftest import API, EMAIL, JOBS, PROJECT, grant, stack
from tpu_agent.jobs.queue import Job, Queue
from tpu_infra import credentials
from tpu_infra.credentials import Given
from tpustack.cloud.google import Google


@pytest.fixture
def submit(run: Run, queue: Queue, deployed: Path) -> Run:
    """`tpustack job submit --on vertex` for the stack dev."""

    def command(*arguments: str) -> Done:
        return run("job", "submit", "--on", "vertex", "--stack", "dev", *arguments)

    return command


def read(queue: Queue, name: str) -> Job:
    job = queue.read(name)
    assert job is not None
    return job


@pytest.mark.server
def test_a_job_is_followed_to_its_exit_code_with_the_same_commands(
    submit: Run, job: Run, client: Client, folder: Path
) -> None:
    (folder / "main.py").write_text(
        "import os, sys\n"
        "print('tpu', os.environ['TPU_NAME'], os.environ['JOB_DIR'], sys.argv[1], flush=True)\n"
        "open(os.environ['ARTIFACTS_DIR'] + '/made.txt', 'w').write('made')\n"
        "sys.exit(3)\n"
    )
    first = ("--command", "python main.py 42", "--dir", str(folder), "--name", "first")
    done = submit(*first, "--framework", "tensorflow")
    assert (done.code, done.out, done.err) == (0, "first\n", "")
    assert job("wait", "first", "--timeout", "60s").code == 3
    followed = job("logs", "first", "--follow")
    assert (followed.code, followed.out) == (3, "tpu local gs://a-bucket/jobs/first 42\n")
    (made,) = json.loads(job("artifacts", "first", "--json").out)
    assert (made["name"], made["bytes"]) == ("artifacts/made.txt", 4)
    shown = job("show", "first").out
    assert "first: failed (exit code 3)" in shown
    assert "runs on    v2-8 of Vertex AI in us-central1, projects/" in shown

    # One that runs is stopped with what it has left so far.
    assert submit("--command", "echo up; sleep 600", "--name", "long").code == 0
    custom_job = json.loads(job("show", "long", "--json").out)["custom_job"]
    until(lambda: "up\n" in job("logs", "long").out)
    assert job("stop", "long").out == "long is stopping\n"
    assert job("wait", "long", "--timeout", "60s").code == 143
    url = f"us-central1-{API}/v1/{custom_job}"
    until(lambda: "endTime" in client.get(url))


def peered(cloud: LocalCloud, state: str = "ACTIVE") -> str:
    """Have the project's network peered with Google's services, and return its name."""
    projects.enable_services(cloud.cloud, PROJECT, ("compute.googleapis.com",))
    path = f"projects/{PROJECT}/global/networks/default"
    peering = {"name": "servicenetworking-googleapis-com", "state": state}
    record = cloud.cloud.store.load("compute", path, KeyError(path))
    cloud.cloud.store.put("compute", path, {**record, "peerings": [peering]})
    return f"projects/{projects.number(PROJECT)}/global/networks/default"


def test_the_request_is_the_worker_pool_that_google_documents(
    submit: Run, client: Client, cloud: LocalCloud, queue: Queue, machines: FakeMachines,
    deployed: Path,
) -> None:  # fmt: skip
    network = peered(cloud)
    stack(deployed, {"vertex": {"region": "us-west4", "network": network}})
    more = ("--tpu", "v5litepod-4", "--image", "eu.gcr.io/mine/jax:1", "--preemptions", "0")
    assert submit("--command", "true", "--name", "one", "--framework", "jax", *more).code == 0
    (made,) = client.get(JOBS.replace("us-central1", "us-west4"))["customJobs"]
    (pool,) = made["jobSpec"]["workerPoolSpecs"]
    assert pool["machineSpec"] == {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x2"}
    assert pool["containerSpec"]["imageUri"] == "eu.gcr.io/mine/jax:1"
    assert made["jobSpec"]["serviceAccount"] == EMAIL
    assert made["jobSpec"]["network"] == network
    assert made["jobSpec"]["scheduling"] == {"disableRetries": True}
    assert read(queue, "one").custom_job == made["name"]


def test_spot_is_a_strategy_and_counts_against_a_quota_of_its_own(
    submit: Run, job: Run, client: Client, cloud: LocalCloud, machines: FakeMachines
) -> None:
    cloud.cloud.store.put("setting", "quota", {"custom_model_training_preemptible_tpu_v2": 8})
    assert submit("--command", "true", "--name", "one", "--spot").code == 0
    (made,) = client.get(JOBS)["customJobs"]
    assert made["jobSpec"]["scheduling"] == {"disableRetries": False, "strategy": "SPOT"}
    assert "runs on    spot v2-8 of Vertex AI" in job("show", "one").out
    refused = submit("--command", "true", "--name", "two", "--spot")
    assert f"Ask for {API}/custom_model_training_preemptible_tpu_v2 on" in refused.err


def test_a_slice_of_several_hosts_is_one_replica(
    submit: Run, client: Client, machines: FakeMachines
) -> None:
    more = ("--tpu", "v5litepod-16", "--framework", "jax")
    assert submit("--command", "true", "--name", "one", *more).code == 0
    (made,) = client.get(JOBS)["customJobs"]
    (pool,) = made["jobSpec"]["workerPoolSpecs"]
    assert pool["machineSpec"] == {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "4x4"}
    assert pool["replicaCount"] == "1"


def test_stopping_a_queued_custom_job_cancels_it(
    submit: Run, job: Run, client: Client, machines: FakeMachines
) -> None:
    assert submit("--command", "true", "--name", "one").code == 0
    assert job("stop", "one").out == "one is stopped\n"
    (made,) = client.get(JOBS)["customJobs"]
    assert made["state"] == "JOB_STATE_CANCELLED"
    assert job("wait", "one").code == 143


def test_a_custom_job_that_ended_without_the_agent_ends_the_job(
    submit: Run, job: Run, cloud: LocalCloud, queue: Queue, machines: FakeMachines
) -> None:
    zones = {f"us-central1-{letter}": ["*"] for letter in "abcf"}
    cloud.cloud.store.put("setting", "stockout", zones)
    assert submit("--command", "true", "--name", "poor").code == 0
    said = job("wait", "poor")
    assert said.code == 1
    assert "Resources are insufficient in region: us-central1" in said.out
    assert "another region by jobs.vertex.region" in said.out


def test_a_container_that_was_killed_too_often_ends_the_job(
    submit: Run, job: Run, cloud: LocalCloud, machines: FakeMachines
) -> None:
    assert submit("--command", "true", "--name", "killed", "--preemptions", "0").code == 0
    (key,) = machines.specs
    machine_powered_off.run(cloud.cloud, key)
    said = job("show", "killed")
    assert "killed: failed (Vertex AI: The replica workerpool0-0 exited" in said.out


def test_access_to_the_bucket_is_enough_to_read_a_job(
    submit: Run, job: Run, cloud: LocalCloud, client: Client, machines: FakeMachines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert submit("--command", "true", "--name", "one").code == 0
    grant(client, "user:ada@x.org", "roles/storage.objectViewer")
    ada = Client(cloud, "user:ada@x.org")
    for module in ("queue", "vertex"):
        monkeypatch.setattr(f"tpustack.jobs.{module}.Google", lambda: Google(ada.session))
    assert "one: queued" in job("show", "one").out


def test_resubmit_stays_on_vertex_ai_and_the_runner_ignores_both(
    submit: Run, run: Run, job: Run, client: Client, machines: FakeMachines
) -> None:
    assert submit("--command", "true", "--name", "one").code == 0
    assert run("job", "resubmit", "one", "--stack", "dev").out == "one-r2\n"
    assert len(client.get(JOBS)["customJobs"]) == 2
    assert [row["place"] for row in json.loads(job("list", "--json").out)] == [None, None]


REFUSALS = {
    "v4": (("--tpu", "v4-8"), "--tpu: Vertex AI runs no job of ours on v4-8: Google lists v2, v3"),
    "v5p": (("--tpu", "v5p-8"), "for training there, not v5p. Give one of v2-8,"),
    "v3 slice": (("--tpu", "v3-32"), "on v3-32: of v3, only one host is known to us"),
    "none": (("--tpu", "gpu"), "on gpu: there is no such TPU"),
    "spot slice": (
        ("--tpu", "v5litepod-16", "--spot"),
        "--spot: Vertex AI gives no spot v5litepod-16: Google does not support",
    ),
    "image": (
        ("--tpu", "v5litepod-4", "--framework", "tensorflow"),
        "--image: Google has no container with tensorflow for v5litepod-4",
    ),
    "after": (("--priority", "1"), "not with --on vertex"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_options_vertex_ai_does_not_support_are_refused_before_the_upload(
    submit: Run, queue: Queue, case: str
) -> None:
    arguments, says = REFUSALS[case]
    done = submit("--command", "true", *arguments)
    assert done.code == 2
    assert says in done.err
    assert list(queue.store.items("")) == []


def test_a_network_without_peering_is_refused(
    submit: Run, queue: Queue, cloud: LocalCloud, client: Client, deployed: Path,
    machines: FakeMachines, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    network = peered(cloud, state="INACTIVE")
    stack(deployed, {"vertex": {"network": network}})
    done = submit("--command", "true", "--name", "one")
    assert done.code == 2
    assert f"of {network} is INACTIVE, not ACTIVE, so that no job starts there" in done.err
    assert queue.summaries() == {}
    grant(client, "user:ada@x.org", "roles/storage.objectUser", "roles/aiplatform.user")
    email = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts/{EMAIL}"
    binding = {"role": "roles/iam.serviceAccountUser", "members": ["user:ada@x.org"]}
    client.post(f"{email}:setIamPolicy", {"policy": {"bindings": [binding]}})
    ada = Client(cloud, "user:ada@x.org")
    for module in ("queue", "vertex"):
        monkeypatch.setattr(f"tpustack.jobs.{module}.Google", lambda: Google(ada.session))
    assert submit("--command", "true", "--name", "one").code == 0


def test_a_stack_without_managed_training_and_a_bucket_alone_are_refused(
    submit: Run, run: Run, job: Run, deployed: Path
) -> None:
    stack(deployed, {"enabled": True})
    assert "jobs.vertex: (not set) for the stack dev" in submit("--command", "true").err
    assert "--on vertex needs --stack" in job("submit", "--on", "vertex", "--command", "true").err
    stray = run("job", "submit", "--stack", "dev", "--command", "true", "--tpu", "v2-8", "--spot")
    assert "--tpu, --spot: only with --on vertex" in stray.err


def disabled(cloud: LocalCloud, client: Client, project: Path) -> None:
    cloud.cloud.store.delete(projects.ENABLED_SERVICE, projects.service_key(PROJECT, API))


def no_quota(cloud: LocalCloud, client: Client, project: Path) -> None:
    cloud.cloud.store.put("setting", "quota", {"custom_model_training_tpu_v2": 0})


def no_account(cloud: LocalCloud, client: Client, project: Path) -> None:
    client.delete(f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts/{EMAIL}")


def other_region(cloud: LocalCloud, client: Client, project: Path) -> None:
    stack(project, {"vertex": {"region": "us-west2"}})


CURES = {
    disabled: "aiplatform.googleapis.com is disabled in tpu-stack-local. `pulumi up`",
    no_quota: f"Ask for {API}/custom_model_training_tpu_v2 on the page",
    no_account: f"there is no account {EMAIL}. `pulumi up` makes it",
    other_region: "us-west2 may have no such TPU. Set jobs.vertex.region",
}


@pytest.mark.parametrize("wrong", CURES, ids=lambda wrong: wrong.__name__)
def test_a_refusal_is_one_message_with_its_cure_and_nothing_is_queued(
    submit: Run, queue: Queue, cloud: LocalCloud, client: Client, deployed: Path, wrong: object,
) -> None:  # fmt: skip
    assert callable(wrong)
    wrong(cloud, client, deployed)
    done = submit("--command", "true", "--name", "one")
    assert done.code == 1
    assert CURES[wrong] in done.err
    assert "Nothing was queued" in done.err
    assert queue.summaries() == {}


@pytest.mark.parametrize(
    ("roles", "asks", "says"),
    [
        (("roles/storage.objectUser",), False, "Ask for roles/aiplatform.user"),
        (
            ("roles/storage.objectUser", "roles/aiplatform.user"),
            False,
            f"you may not run jobs as {EMAIL}. Ask for roles/iam.serviceAccountUser",
        ),
        # Whether Vertex AI asks people for a quota project is not known.
        (
            ("roles/storage.objectUser", "roles/aiplatform.user"),
            True,
            f"may not count for {PROJECT}. Ask for roles/serviceusage.serviceUsageConsumer",
        ),
        (
            (
                *("roles/storage.objectUser", "roles/aiplatform.user"),
                "roles/serviceusage.serviceUsageConsumer",
            ),
            True,
            f"you may not run jobs as {EMAIL}. Ask for roles/iam.serviceAccountUser",
        ),
    ],
)
def test_a_denied_submission_names_the_missing_role(
    submit: Run, queue: Queue, cloud: LocalCloud, client: Client, roles: tuple[str, ...],
    asks: bool, says: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    grant(client, "user:ada@x.org", *roles)
    faults.change_setting(cloud.cloud, "vertex-quota-project", {"on": asks})
    ada = Client(cloud, "user:ada@x.org")
    # As gcloud gives it.
    token = cloud.cloud.token(Principal("user:ada@x.org"))
    ada.session.headers["Authorization"] = f"Bearer {token}"
    ada.session.hooks = credentials.session(Given(token="unused")).hooks
    for module in ("queue", "vertex"):
        monkeypatch.setattr(f"tpustack.jobs.{module}.Google", lambda: Google(ada.session))
    done = submit("--command", "true", "--name", "one")
    assert says in done.err
    assert queue.summaries() == {}
