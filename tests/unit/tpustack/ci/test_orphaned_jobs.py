"""Custom jobs that run as the account of a request's stack without a state are cancelled."""

from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client
from tests.unit.localcloud.aiplatform.test_custom_jobs import V2, body
from tests.unit.tpustack.ci.test_orphans import (  # noqa: F401 # Its fixtures, too.
    IAM,
    PROJECT,
    VERTEX_API,
    api,
    clock,
    cloud,
    grant,
    sweep,
)
from tpu_infra.catalog import vertex_regions
from tpu_infra.names import VERTEX, mark_of
from tpustack.ci.result import Outcome
from tpustack.errors import TpustackError

LABELS = {"tpu-stack-job": "one"}


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://ours")


def account(
    api: Client,  # noqa: F811
    name: str,
    stack: str,
    mark: str = "",
    title: str = VERTEX,
) -> str:
    """An account as a stack makes it, by default one of this backend."""
    told = f"Made by tpu-stack for stack {stack} ({mark or mark_of(stack)})"
    said = {"displayName": title, "description": told}
    return str(api.post(IAM, {"accountId": name, "serviceAccount": said})["email"])


def jobs(region: str = "us-central1") -> str:
    host = f"{region}-aiplatform.googleapis.com"
    return f"{host}/v1/projects/{PROJECT}/locations/{region}/customJobs"


def submit(
    api: Client,  # noqa: F811
    email: str,
    region: str = "us-central1",
    labels: dict[str, str] = LABELS,
) -> str:
    """The number of a job that runs as an account."""
    machine = V2 if region == "us-central1" else {"machineType": "ct5lp-hightpu-1t"}
    pool = machine if machine is V2 else machine | {"tpuTopology": "1x1"}
    job = {**body(pool, serviceAccount=email), "labels": labels}
    return str(api.post(jobs(region), job)["name"]).rpartition("/")[2]


def states(api: Client, region: str = "us-central1") -> dict[str, str]:  # noqa: F811
    found = api.get(jobs(region)).get("customJobs", [])
    return {job["name"].rpartition("/")[2]: job["state"].rpartition("_")[2] for job in found}


def accounts(api: Client) -> set[str]:  # noqa: F811
    return {each["email"] for each in api.get(IAM).get("accounts", [])}


def test_a_job_is_named_then_cancelled_and_its_account_goes_once_it_has_ended(
    api: Client,  # noqa: F811
) -> None:
    email = account(api, "vx-acme-pr-7-ml", "pr-7")
    here, there = submit(api, email), submit(api, email, "us-west4")
    (named,) = sweep(api, "pr-8", remove=False)
    assert f"custom job {here} in us-central1, custom job {there} in us-west4" in named.notes[0]
    assert states(api) == {here: "RUNNING"}
    (first,) = sweep(api, "pr-8", remove=True)
    assert first.outcome is Outcome.CHANGES
    assert {**states(api), **states(api, "us-west4")} == {here: "CANCELLED", there: "CANCELLED"}
    assert "waits until no custom job runs as it" in first.notes[1]
    assert email in accounts(api)
    (second,) = sweep(api, "pr-8", remove=True)
    assert (second.outcome, len(second.notes)) == (Outcome.CHANGES, 1)
    assert email not in accounts(api)


def test_the_account_waits_for_a_job_that_is_still_being_cancelled(
    api: Client,  # noqa: F811
    cloud: LocalCloud,  # noqa: F811
    clock: VirtualClock,  # noqa: F811
) -> None:
    email = account(api, "pr-7-vx", "pr-7")
    job = submit(api, email)
    cloud.cloud.latency_profile = "real"
    for _ in range(2):
        sweep(api, "pr-8", remove=True)
        assert states(api) == {job: "CANCELLING"}
        assert email in accounts(api)
    clock.advance(600)
    sweep(api, "pr-8", remove=True)
    assert states(api) == {job: "CANCELLED"}
    clock.advance(600)
    assert email not in accounts(api)


def test_no_other_job_is_touched(api: Client) -> None:  # noqa: F811
    lives = account(api, "pr-8-vx", "pr-8")
    others = account(api, "theirs-vx", "pr-7", "0f1e2d3c")
    environments = account(api, "dev-vx", "dev")
    orphan = account(api, "pr-7-vx", "pr-7")
    stay = {submit(api, email) for email in (lives, others, environments)}
    stay.add(submit(api, orphan, labels={"team": "vision"}))
    sweep(api, "dev", "pr-8", remove=True)
    assert states(api) == dict.fromkeys(stay, "RUNNING")


def test_a_job_that_is_young_keeps_all_of_its_stack(api: Client) -> None:  # noqa: F811
    job = submit(api, account(api, "pr-7-vx", "pr-7"))
    (kept,) = sweep(api, "pr-8", remove=True, hours=1.9)
    assert "They stay until all are two hours old" in kept.notes[0]
    assert states(api) == {job: "RUNNING"}


def test_a_disabled_api_has_no_jobs_and_the_account_goes(
    api: Client,  # noqa: F811
    cloud: LocalCloud,  # noqa: F811
) -> None:
    email = account(api, "pr-7-vx", "pr-7")
    cloud.cloud.store.delete(projects.ENABLED_SERVICE, projects.service_key(PROJECT, VERTEX_API))
    (removed,) = sweep(api, "pr-8", remove=True)
    assert (removed.outcome, len(removed.notes)) == (Outcome.CHANGES, 1)
    assert email not in accounts(api)


def test_without_permission_to_list_jobs_nothing_is_deleted(api: Client) -> None:  # noqa: F811
    email = account(api, "pr-7-vx", "pr-7")
    member = grant(api, without="aiplatform.customJobs.list")
    with pytest.raises(TpustackError, match=rf"as {email}, .* you need aiplatform.customJobs.list"):
        sweep(api.as_member(member), "pr-8", remove=True)
    assert email in accounts(api)


def test_without_permission_to_cancel_a_job_its_account_is_kept(api: Client) -> None:  # noqa: F811
    email = account(api, "pr-7-vx", "pr-7")
    job = submit(api, email)
    member = grant(api, without="aiplatform.customJobs.cancel")
    (refused,) = sweep(api.as_member(member), "pr-8", remove=True)
    assert refused.outcome is Outcome.FAILURE
    assert "aiplatform.customJobs.cancel" in refused.problem
    assert states(api) == {job: "RUNNING"}
    assert email in accounts(api)


def test_vertex_ai_is_not_asked_without_an_orphaned_training_account(
    api: Client,  # noqa: F811
    cloud: LocalCloud,  # noqa: F811
) -> None:
    account(api, "pr-7-sa", "pr-7", title="Machines of a tpu-stack")
    account(api, "pr-8-vx", "pr-8")
    member = grant(api)
    sweep(api.as_member(member), "pr-8", remove=True)
    assert not any(name.startswith("aiplatform") for name in cloud.cloud.asked[member])


def test_regions_are_those_of_the_types_that_vertex_ai_offers() -> None:
    assert {"us-central1", "us-west4", "europe-west4", "us-east5"} <= set(vertex_regions())
    assert "us-central2" not in vertex_regions()  # v4 alone.
