"""Host projects, and the service projects that are attached to them."""

from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.cloud import DEVELOPER
from localcloud.testing import Client

PROJECTS = "compute.googleapis.com/compute/v1/projects"
HOST, SERVICE = f"{PROJECTS}/tpu-stack-local", f"{PROJECTS}/service-project"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com",)


@pytest.fixture
def google(local_cloud: LocalCloud, api: Client) -> Client:
    """The owner of two projects."""
    projects.ensure(local_cloud.cloud, "service-project", owner=DEVELOPER)
    url = "serviceusage.googleapis.com/v1/projects/service-project/services"
    api.post(f"{url}/compute.googleapis.com:enable", {})
    return api


def test_a_service_project_has_one_host_project_and_is_none_itself(google: Client) -> None:
    service = {"xpnResource": {"type": "PROJECT", "id": "service-project"}}
    assert "not a shared VPC host" in str(
        google.post(f"{HOST}/enableXpnResource", service, status=400)
    )
    google.post(f"{HOST}/enableXpnHost")
    google.post(f"{HOST}/enableXpnResource", service)
    assert google.get(HOST)["xpnProjectStatus"] == "HOST"
    google.post(f"{SERVICE}/enableXpnHost", status=400)


def test_setting_up_a_shared_vpc_needs_its_permissions(google: Client) -> None:
    google.as_member("user:stranger@example.com").post(f"{HOST}/enableXpnHost", status=403)
