"""Custom jobs of Vertex AI: what is taken, what is refused, how they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.call import Json
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud, Latency, machine_powered_off
from localcloud.testing import Client
from tests.patience import until
from tests.unit.localcloud.fake_machines import FakeMachines

PROJECT = "tpu-stack-local"
HOST = "us-central1-aiplatform.googleapis.com"
JOBS = f"{HOST}/v1/projects/{PROJECT}/locations/us-central1/customJobs"
V2 = {"machineType": "cloud-tpu", "acceleratorType": "TPU_V2", "acceleratorCount": 8}
EMAIL = f"runner@{PROJECT}.iam.gserviceaccount.com"
CODE = "vertex/exit-code"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("aiplatform.googleapis.com", "iam.googleapis.com")


@pytest.fixture
def latency() -> Latency:
    return "real"


def body(machine: Json = V2, command: str = "true", **spec: Any) -> Json:
    container = {"imageUri": "python:3.11", "command": ["bash", "-c"], "args": [command]}
    pool = {"machineSpec": machine, "replicaCount": "1", "containerSpec": container}
    return {"displayName": "a job", "jobSpec": {"workerPoolSpecs": [pool], **spec}}


def key_of(job: Json) -> str:
    return f"projects/{PROJECT}/locations/us-central1/customJobs/{job['name'].split('/')[-1]}"


def at(job: Json) -> str:
    return f"{JOBS}/{job['name'].split('/')[-1]}"


Ends = Callable[[Json, "str | None"], Json]


@pytest.fixture
def ends(
    api: Client, cloud: Cloud, machines: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> Ends:
    """Lets the container of a job end with an exit code, or vanish without one."""

    def end(job: Json, code: str | None) -> Json:
        said = {CODE: code} if code is not None else {}
        monkeypatch.setattr(machines, "guest_attributes", lambda key: said)
        machine_powered_off.run(cloud, key_of(job))
        return api.get(at(job))

    return end


def test_a_job_waits_for_its_machine_runs_and_has_the_projects_number_in_its_name(
    api: Client, clock: VirtualClock, machines: FakeMachines, ends: Ends
) -> None:
    job = api.post(JOBS, body(command="echo it's me"))
    assert job["state"] == "JOB_STATE_PENDING"
    assert job["name"].split("/")[1].isdigit()
    assert machines.specs == {}
    clock.advance(120)
    assert api.get(at(job))["state"] == "JOB_STATE_RUNNING"
    (machine,) = machines.specs.values()
    script = machine.attributes["startup-script"]
    assert """bash -c 'echo it'"'"'s me'""" in script
    assert 'export TPU_CONFIG=\'{"project": "tpu-stack-local", "zone": "us-central1-' in script
    assert (machine.service_account or "").endswith("@gcp-sa-aiplatform-cc.iam.gserviceaccount.com")
    assert ends(job, "0")["state"] == "JOB_STATE_SUCCEEDED"


def test_a_job_that_fails_says_its_exit_code(
    api: Client, clock: VirtualClock, machines: FakeMachines, ends: Ends
) -> None:
    job = api.post(JOBS, body())
    clock.advance(120)
    failed = ends(job, "3")
    assert failed["state"] == "JOB_STATE_FAILED"
    assert "non-zero status of 3" in failed["error"]["message"]


def test_a_machine_that_vanishes_is_replaced_unless_the_job_forbids_it(
    api: Client, clock: VirtualClock, machines: FakeMachines, ends: Ends
) -> None:
    stubborn = api.post(JOBS, body())
    delicate = api.post(JOBS, body(scheduling={"disableRetries": True}))
    clock.advance(120)
    states = [ends(stubborn, None)["state"] for _ in range(4)]
    assert states == [*["JOB_STATE_RUNNING"] * 3, "JOB_STATE_FAILED"]
    assert ends(delicate, None)["state"] == "JOB_STATE_FAILED"


def test_a_job_is_cancelled_before_it_is_deleted(
    api: Client, clock: VirtualClock, machines: FakeMachines
) -> None:
    job = api.post(JOBS, body())
    api.delete(at(job), status=400)
    assert api.post(f"{at(job)}:cancel", {}) == {}
    assert api.get(at(job))["state"] == "JOB_STATE_CANCELLING"
    api.post(f"{at(job)}:cancel", {})
    clock.advance(120)
    assert api.get(at(job))["state"] == "JOB_STATE_CANCELLED"
    assert machines.specs == {}
    operation = api.delete(at(job))
    assert operation["done"]
    assert api.get(f"{HOST}/v1/{operation['name']}")["response"]["@type"].endswith("Empty")
    api.get(at(job), status=404)


def test_the_list_has_the_newest_first_and_filters(
    api: Client, clock: VirtualClock, machines: FakeMachines
) -> None:
    first = api.post(JOBS, body())
    clock.advance(200)
    second = api.post(JOBS, body() | {"displayName": "b"})

    def names(**query: Any) -> list[str]:
        return [job["name"] for job in api.get(JOBS, **query).get("customJobs", [])]

    assert names() == [second["name"], first["name"]]
    assert names(filter='state="JOB_STATE_PENDING"') == [second["name"]]
    assert names(filter='display_name="b"') == [second["name"]]
    assert names(filter='state!="JOB_STATE_PENDING" AND state!="x"') == [first["name"]]
    assert names(filter='state!="JOB_STATE_PENDING" AND display_name="b"') == []
    api.get(JOBS, status=501, filter="labels.a=b")


@pytest.mark.parametrize(
    ("machine", "status", "says"),
    [
        (V2 | {"acceleratorCount": 4}, 400, "does not support 4 accelerators of TPU_V2"),
        (V2 | {"acceleratorCount": 32}, 501, "no custom job on v2-32"),
        ({"machineType": "ct5lp-hightpu-8t", "tpuTopology": "4x4"}, 400, "topology '4x4'"),
        ({"machineType": "ct6e-standard-4t", "tpuTopology": "4x4"}, 400, "topology '4x4'"),
        ({"machineType": "ct5lp-hightpu-4t", "tpuTopology": "3x3"}, 400, "topology '3x3'"),
        ({"machineType": "ct6e-standard-1t", "tpuTopology": "1x1"}, 200, ""),
        ({"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x2"}, 200, ""),
        ({"machineType": "n1-standard-4"}, 501, "not on 'n1-standard-4'"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_machines_are_those_that_google_documents(
    api: Client, machines: FakeMachines, machine: Json, status: int, says: str
) -> None:
    answer = api.post(JOBS, body(machine), status=status)
    assert says in str(answer)


def test_each_host_of_a_slice_has_a_container_and_worker_0_ends_the_job(
    api: Client, clock: VirtualClock, machines: FakeMachines, ends: Ends
) -> None:
    slice_ = {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "4x4"}
    job = api.post(JOBS, body(slice_))
    clock.advance(120)
    scripts = [one.attributes["startup-script"] for one in machines.specs.values()]
    assert ["export TPU_WORKER_ID=3\n" in one for one in scripts] == [False, False, False, True]
    assert len({one.name for one in machines.specs.values()}) == 4
    machine_powered_off.run(api.local_cloud.cloud, f"{key_of(job)}/workers/1")
    assert api.get(at(job))["state"] == "JOB_STATE_RUNNING"
    assert ends(job, "0")["state"] == "JOB_STATE_SUCCEEDED"
    api.delete(at(job))
    assert machines.specs == {}


def test_spot_has_a_quota_of_its_own_and_no_slices_of_several_hosts(
    api: Client, cloud: Cloud, machines: FakeMachines
) -> None:
    spot = {"strategy": "SPOT"}
    cloud.store.put("setting", "quota", {"custom_model_training_preemptible_tpu_v2": 0})
    api.post(JOBS, body())
    refused = api.post(JOBS, body(scheduling=spot), status=429)
    assert "custom_model_training_preemptible_tpu_v2" in str(refused)
    slice_ = {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "4x4"}
    assert "TPU Pods" in str(api.post(JOBS, body(slice_, scheduling=spot), status=400))
    api.post(JOBS, body(scheduling={"strategy": "FLEX_START"}), status=501)


def test_a_region_without_the_tpu_another_regions_host_and_a_full_quota_are_refused(
    api: Client, cloud: Cloud, machines: FakeMachines
) -> None:
    elsewhere = JOBS.replace("us-central1", "us-west2")
    assert "not supported in region us-west2" in str(api.post(elsewhere, body(), status=400))
    other = JOBS.replace(HOST, "aiplatform.googleapis.com")
    assert "whose host is" in str(api.post(other, body(), status=400))
    cloud.store.put("setting", "quota", {"custom_model_training_tpu_v2": 8})
    api.post(JOBS, body())
    refused = api.post(JOBS, body(), status=429)["error"]
    assert refused["status"] == "RESOURCE_EXHAUSTED"
    assert "aiplatform.googleapis.com/custom_model_training_tpu_v2" in refused["message"]


def test_a_job_fails_where_its_region_has_no_room(
    api: Client, cloud: Cloud, clock: VirtualClock, machines: FakeMachines
) -> None:
    zones = [f"us-central1-{letter}" for letter in "abcf"]
    cloud.store.put("setting", "stockout", {zone: ["*"] for zone in zones})
    job = api.post(JOBS, body())
    clock.advance(120)
    failed = api.get(at(job))
    assert (failed["state"], failed["error"]["code"]) == ("JOB_STATE_FAILED", 8)


def test_the_submitter_of_a_job_must_be_allowed_to_act_as_its_account(
    api: Client, local_cloud: LocalCloud, machines: FakeMachines, clock: VirtualClock
) -> None:
    accounts = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
    assert "does not exist" in str(api.post(JOBS, body(serviceAccount=EMAIL), status=400))
    api.post(accounts, {"accountId": "runner"})
    clock.advance(local_cloud.cloud.seconds("account.visible"))
    manager = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = api.post(f"{manager}:getIamPolicy")
    policy["bindings"].append({"role": "roles/aiplatform.user", "members": ["user:ada@x.org"]})
    api.post(f"{manager}:setIamPolicy", {"policy": policy})
    ada = Client(local_cloud, "user:ada@x.org")
    refused = ada.post(JOBS, body(serviceAccount=EMAIL), status=403)
    assert "permission to act as service_account" in str(refused)
    binding = {"role": "roles/iam.serviceAccountUser", "members": ["user:ada@x.org"]}
    api.post(f"{accounts}/{EMAIL}:setIamPolicy", {"policy": {"bindings": [binding]}})
    ada.post(JOBS, body(serviceAccount=EMAIL))
    Client(local_cloud, "user:bob@x.org").post(JOBS, body(), status=403)


@pytest.mark.server
class TestReally:
    """With processes."""

    @pytest.fixture
    def latency(self) -> Latency:
        return "none"

    def test_a_container_runs_its_command_as_its_account(self, api: Client, cloud: Cloud) -> None:
        asks = (
            'curl --silent --header "Metadata-Flavor: Google" http://metadata.google.internal'
            "/computeMetadata/v1/instance/service-accounts/default/email; exit 5"
        )
        job = api.post(JOBS, body(command=asks))
        until(lambda: "endTime" in api.get(at(job)))
        assert "non-zero status of 5" in api.get(at(job))["error"]["message"]
        assert "@gcp-sa-aiplatform-cc.iam" in cloud.machines.serial(key_of(job))[0]
