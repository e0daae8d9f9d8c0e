"""What `jobs.vertex` declares: Vertex AI's identity, the jobs' account, who may submit."""

from __future__ import annotations

from typing import Any

import pytest

from tpu_infra.names import Names
from tpu_infra.settings.base import SettingsError

from .conftest import Engine, Run, config

ADA = "user:ada@example.com"
ACCOUNT = "serviceAccount:tpu-stack-test-vx@some-project.iam.gserviceaccount.com"


def vertex(**settings: Any) -> dict[str, object]:
    return config(jobs={"vertex": settings})


def roles(engine: Engine, member: str) -> set[str]:
    return {one.inputs["role"] for one in engine.resources if one.inputs.get("member") == member}


def test_without_it_there_is_neither_account_nor_api(run: Run) -> None:
    engine, _ = run(config())
    assert len(engine.of("Account")) == 1
    assert not engine.of("ServiceIdentity")
    assert not [one for one in engine.of("Service") if "aiplatform" in one.name]


def test_jobs_have_the_buckets_objects_and_a_log_and_nothing_else(run: Run) -> None:
    engine, _ = run(vertex())
    assert engine.one("ServiceIdentity")["service"] == "aiplatform.googleapis.com"
    assert "aiplatform.googleapis.com" in {one.name for one in engine.of("Service")}
    assert roles(engine, ACCOUNT) == {
        "roles/logging.logWriter",
        "roles/storage.legacyBucketReader",
        "roles/storage.objectUser",
    }
    writes = [one for one in engine.of("BucketIAMMember") if one.inputs["member"] == ACCOUNT]
    # Another name would take the grant away from a stack that has it.
    assert {one.name for one in writes} == {"runner-objectUser", "runner-legacyBucketReader"}
    (condition,) = (one.inputs["condition"] for one in writes if one.inputs.get("condition"))
    may = [each.split('"')[0] for each in condition["expression"].split("/objects/")[1:]]
    assert may == ["jobs", "data", "archives/", "bell", "queue/"]


def test_the_end_of_the_stack_knows_whose_jobs_to_cancel_and_where(run: Run) -> None:
    engine, _ = run(vertex())
    declared = engine.dynamic("CustomJobs")
    email = ACCOUNT.removeprefix("serviceAccount:")
    assert (declared["account"], declared["region"]) == (email, "us-central1")
    engine, _ = run(vertex(region="us-west4"))
    assert engine.dynamic("CustomJobs")["region"] == "us-west4"


def test_submitters_may_make_jobs_and_act_as_that_account_alone(run: Run) -> None:
    engine, _ = run(vertex(submitters=[ADA]))
    granted = [one for one in engine.resources if one.inputs.get("member") == ADA]
    assert {(one.kind.rpartition(":")[2], one.inputs["role"]) for one in granted} == {
        ("IAMMember", "roles/aiplatform.user"),
        ("IAMMember", "roles/iam.serviceAccountUser"),
    }
    (acts,) = (one for one in granted if one.kind.startswith("gcp:serviceaccount"))
    assert "project" not in acts.inputs


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"region": "us-central1-b"}, "is not a region"),
        ({"network": "projects/my-project/global/networks/n"}, "the project's number"),
        ({"submitters": ["ada@example.com"]}, "not a member such as user:ada@example.com"),
    ],
    ids=lambda value: str(value),
)
def test_what_google_would_not_take_is_refused(
    run: Run, settings: dict[str, object], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        run(vertex(**settings))


def test_the_account_of_a_domains_project_has_an_address_of_that_domain() -> None:
    plain = Names.email_of("a-vx", "my-project")
    assert plain == "a-vx@my-project.iam.gserviceaccount.com"
    domain = Names.email_of("a-vx", "example.com:mine")
    assert domain == "a-vx@mine.example.com.iam.gserviceaccount.com"
