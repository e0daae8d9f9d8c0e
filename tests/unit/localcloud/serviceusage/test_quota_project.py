"""A call that names a quota project counts against it, whatever project it is about."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud import faults
from localcloud.core import projects
from localcloud.core.call import Principal
from localcloud.core.cloud import DEVELOPER, Cloud
from localcloud.testing import Client

OURS, OTHERS = projects.DEFAULT_PROJECT, "other-project"
NODES = f"tpu.googleapis.com/v2/projects/{OURS}/locations/us-central1-b/nodes"
MANAGER = "cloudresourcemanager.googleapis.com/v1/projects"
MEMBER = "user:ada@example.com"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return (
        *("tpu.googleapis.com", "orgpolicy.googleapis.com", "aiplatform.googleapis.com"),
        "iam.googleapis.com",
    )


@pytest.fixture
def others(cloud: Cloud) -> str:
    """Another project of the developer's, without the TPU API."""
    projects.ensure(cloud, OTHERS, owner=DEVELOPER)
    return OTHERS


def refusal(client: Client) -> dict[str, Any]:
    error: dict[str, Any] = client.get(NODES, status=403)["error"]
    return {"message": error["message"], "reason": error["details"][0]["reason"]}


def test_the_api_must_be_enabled_in_the_quota_project(api: Client, others: str) -> None:
    api.session.headers["X-Goog-User-Project"] = others
    assert refusal(api)["reason"] == "SERVICE_DISABLED"
    enable = f"serviceusage.googleapis.com/v1/projects/{others}/services/tpu.googleapis.com:enable"
    api.session.headers.pop("X-Goog-User-Project")
    api.post(enable, {})
    api.session.headers["X-Goog-User-Project"] = others
    assert api.get(NODES) == {}


@pytest.mark.parametrize("project", [OTHERS, "a-project-that-is-nowhere"])
def test_the_caller_must_be_allowed_to_use_it(api: Client, others: str, project: str) -> None:
    policy = api.post(f"{MANAGER}/{OURS}:getIamPolicy")
    policy["bindings"].append({"role": "roles/tpu.viewer", "members": [MEMBER]})
    api.post(f"{MANAGER}/{OURS}:setIamPolicy", {"policy": policy})
    ada = api.as_member(MEMBER)
    assert ada.get(NODES) == {}
    ada.session.headers["X-Goog-User-Project"] = project
    refused = refusal(ada)
    assert refused["reason"] == "USER_PROJECT_DENIED"
    assert refused["message"].startswith(
        f"Caller does not have required permission to use project {project}. Grant the caller the "
        "roles/serviceusage.serviceUsageConsumer role"
    )


POLICY = f"orgpolicy.googleapis.com/v2/projects/{OURS}/policies/gcp.x:getEffectivePolicy"
PLACE = f"projects/{OURS}/locations/us-central1"
JOBS = f"us-central1-aiplatform.googleapis.com/v1/{PLACE}/customJobs"


@pytest.fixture
def person(api: Client, cloud: Cloud) -> Client:
    """The developer with a token that gcloud, or its default credentials, brought."""
    client = api.as_member(DEVELOPER)
    client.session.headers["Authorization"] = f"Bearer {cloud.token(Principal(DEVELOPER))}"
    return client


def test_a_client_based_api_refuses_users_without_a_quota_project(
    api: Client, person: Client, others: str
) -> None:
    api.as_member("").get(POLICY, status=401)
    assert "spec" in api.get(POLICY), "an OAuth client of their own"
    error = person.get(POLICY, status=403)["error"]
    assert "The orgpolicy.googleapis.com API requires a quota project" in error["message"]
    assert error["details"][0]["reason"] == "SERVICE_DISABLED"
    assert error["details"][0]["metadata"]["service"] == "orgpolicy.googleapis.com"
    policy = api.post(f"{MANAGER}/{OURS}:getIamPolicy")
    for project in (OURS, others):
        accounts = f"iam.googleapis.com/v1/projects/{project}/serviceAccounts"
        if project == others:
            api.post(
                f"serviceusage.googleapis.com/v1/projects/{others}/services/"
                "iam.googleapis.com:enable",
                {},
            )
        email = api.post(accounts, {"accountId": "reader"})["email"]
        member = f"serviceAccount:{email}"
        policy["bindings"].append({"role": "roles/owner", "members": [member]})
    api.post(f"{MANAGER}/{OURS}:setIamPolicy", {"policy": policy})
    ours = f"serviceAccount:reader@{OURS}.iam.gserviceaccount.com"
    assert "spec" in api.as_member(ours).get(POLICY)
    # The other's own project lacks the API.
    theirs = api.as_member(ours.replace(OURS, OTHERS))
    assert "has not been used in project" in theirs.get(POLICY, status=403)["error"]["message"]


def test_vertex_ai_requires_a_quota_project_if_the_setting_says_so(
    person: Client, cloud: Cloud
) -> None:
    assert person.get(JOBS) == {}
    faults.change_setting(cloud, "vertex-quota-project", {"on": True})
    assert "requires a quota project" in person.get(JOBS, status=403)["error"]["message"]
    person.session.headers["X-Goog-User-Project"] = OURS
    assert person.get(JOBS) == {}
