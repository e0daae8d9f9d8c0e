"""What a stack's end does to its jobs on Vertex AI, against the local cloud in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud, Latency
from localcloud.testing import Client
from tests.unit.localcloud.aiplatform.test_custom_jobs import PROJECT, body
from tests.unit.localcloud.conftest import (  # noqa: F401 # The local cloud's own fixtures.
    api,
    clock,
    cloud,
    local_cloud,
    machines,
)
from tpu_infra.credentials import client_of
from tpu_infra.resources import vertex
from tpu_infra.resources.vertex import VertexJobsProvider
from tpu_infra.rest import Api

pytestmark = pytest.mark.usefixtures("machines", "reached")
OURS, OTHERS = (f"{name}-vx@{PROJECT}.iam.gserviceaccount.com" for name in ("dev", "prod"))
LABELS = {"tpu-stack-job": "one"}
PROPS = {"project": PROJECT, "account": OURS, "region": "us-central1"}
DECLARED = {**PROPS, "regions": ["us-central1"]}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("aiplatform.googleapis.com", "iam.googleapis.com")


@pytest.fixture
def latency() -> Latency:
    return "real"


@pytest.fixture
def reached(api: Client, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Both stacks' accounts, and an API that is called as the deployer."""
    for email in (OURS, OTHERS):
        accounts = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
        api.post(accounts, {"accountId": email.partition("@")[0]})
    clock.advance(60)  # Until they are found.
    calls_as(api, clock, monkeypatch)


def calls_as(client: Client, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def at(region: str) -> Api:
        root = f"https://{region}-aiplatform.googleapis.com/v1/"
        return Api(root, "Vertex AI", client_of(client.session), clock.now, clock.advance)

    monkeypatch.setattr(vertex, "CustomJobsApi", at)


def jobs(region: str = "us-central1") -> str:
    host = f"{region}-aiplatform.googleapis.com"
    return f"{host}/v1/projects/{PROJECT}/locations/{region}/customJobs"


def submitted(api: Client, account: str = OURS, region: str = "us-central1", **more: Any) -> str:  # noqa: F811
    machine = {"machineType": "ct5lp-hightpu-1t", "tpuTopology": "1x1"}
    job = {**body(machine, serviceAccount=account), "labels": LABELS, **more}
    return str(api.post(jobs(region), job)["name"])


def states(api: Client, region: str = "us-central1") -> dict[str, str]:  # noqa: F811
    found = api.get(jobs(region)).get("customJobs", [])
    return {job["name"]: job["state"].removeprefix("JOB_STATE_") for job in found}


def test_what_runs_is_cancelled_and_has_ended_when_the_account_goes(
    api: Client, clock: VirtualClock, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    running = submitted(api)
    clock.advance(120)
    waiting = submitted(api, displayName="waiting")
    VertexJobsProvider().delete("id", DECLARED)
    assert states(api) == {running: "CANCELLED", waiting: "CANCELLED"}
    said = capsys.readouterr().out.splitlines()
    assert f"cancelling the custom job waiting ({waiting}), which runs on Vertex AI" in said[0]
    assert len(said) == 2


def test_jobs_of_other_stacks_and_of_other_tools_keep_running(
    api: Client,  # noqa: F811
    clock: VirtualClock,  # noqa: F811
) -> None:
    others = [submitted(api, OTHERS), submitted(api, labels={"team": "vision"})]
    clock.advance(120)
    VertexJobsProvider().delete("id", DECLARED)
    assert states(api) == dict.fromkeys(others, "RUNNING")


def test_an_earlier_region_is_remembered_and_nothing_is_cancelled_for_another(
    api: Client,  # noqa: F811
) -> None:
    provider = VertexJobsProvider()
    declared = provider.create(PROPS).outs or {}
    assert declared == DECLARED
    moved = {**PROPS, "region": "us-west4"}
    diff = provider.diff("id", declared, moved)
    assert (diff.changes, diff.replaces) == (True, [])
    declared = provider.update("id", declared, moved).outs or {}
    first, second = submitted(api), submitted(api, region="us-west4")
    provider.delete("id", declared)
    assert {**states(api), **states(api, "us-west4")} == {first: "CANCELLED", second: "CANCELLED"}


def test_another_account_or_project_is_another_resource() -> None:
    diff = VertexJobsProvider().diff
    assert diff("id", DECLARED, {**PROPS, "account": OTHERS}).replaces == ["account"]
    assert diff("id", DECLARED, {**PROPS, "project": "x"}).replaces == ["project"]
    assert not diff("id", DECLARED, PROPS).changes


def test_missing_permissions_are_named_and_the_account_stays(
    local_cloud: LocalCloud, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    calls_as(Client(local_cloud, "user:ada@x.org"), clock, monkeypatch)
    with pytest.raises(RuntimeError, match=r"needs aiplatform.customJobs.list and .cancel"):
        VertexJobsProvider().delete("id", DECLARED)


def test_one_that_does_not_end_is_named(
    api: Client, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(vertex, "_MINUTES", 0.5)
    name = submitted(api)
    with pytest.raises(RuntimeError, match=rf"a job \({name}\) on Vertex AI still runs"):
        VertexJobsProvider().delete("id", DECLARED)


def test_a_project_whose_api_was_disabled_has_no_jobs(cloud: Cloud) -> None:  # noqa: F811
    key = projects.service_key(PROJECT, "aiplatform.googleapis.com")
    cloud.store.delete(projects.ENABLED_SERVICE, key)
    VertexJobsProvider().delete("id", DECLARED)


@pytest.mark.parametrize("region", ["evil.org/?us-central1", "us-central1.evil.org/", ""])
def test_an_invalid_region_gets_no_token(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ValueError, match="is not a region of Google's"):
        VertexJobsProvider().delete("id", {**DECLARED, "regions": [region]})
