"""A call that names a quota project counts against it, whatever project it is about."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.core import projects
from localcloud.core.cloud import DEVELOPER, Cloud
from localcloud.testing import Client

OURS, OTHERS = projects.DEFAULT_PROJECT, "other-project"
NODES = f"tpu.googleapis.com/v2/projects/{OURS}/locations/us-central1-b/nodes"
MANAGER = "cloudresourcemanager.googleapis.com/v1/projects"
MEMBER = "user:ada@example.com"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("tpu.googleapis.com",)


@pytest.fixture
def others(cloud: Cloud) -> str:
    """Another project of the developer's, without the TPU API."""
    projects.ensure(cloud, OTHERS, owner=DEVELOPER)
    return OTHERS


def refusal(client: Client) -> dict[str, Any]:
    error: dict[str, Any] = client.get(NODES, status=403)["error"]
    return {"message": error["message"], "reason": error["details"][0]["reason"]}


def test_its_api_must_be_enabled_there(api: Client, others: str) -> None:
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
