from __future__ import annotations

import pytest

from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Latency
from localcloud.testing import Client

PROJECT = projects.DEFAULT_PROJECT
NUMBER = projects.number(PROJECT)
V1 = f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
BETA = f"serviceusage.googleapis.com/v1beta1/projects/{PROJECT}/services"
NODES = f"tpu.googleapis.com/v2/projects/{PROJECT}/locations/us-central1-b/nodes"
TPU = "tpu.googleapis.com"


def test_an_api_answers_once_it_is_enabled_and_not_after_it_is_disabled(api: Client) -> None:
    error = api.get(NODES, status=403)["error"]
    assert error["details"][0]["reason"] == "SERVICE_DISABLED"
    assert error["details"][0]["metadata"]["consumer"] == f"projects/{NUMBER}"
    assert f"Cloud TPU API has not been used in project {NUMBER} before" in error["message"]
    operation = api.post(f"{V1}/{TPU}:enable", {})
    assert operation["response"]["service"]["state"] == "ENABLED"
    assert api.get(NODES) == {}
    api.post(f"{V1}/{TPU}:disable", {})
    api.get(NODES, status=403)


def test_lists_are_filtered_and_paged(api: Client) -> None:
    enabled = api.get(BETA, filter="state:ENABLED")["services"]
    names = [one["config"]["name"] for one in enabled]
    assert "storage.googleapis.com" in names
    assert TPU not in names
    first = api.get(V1, filter="state:ENABLED", pageSize=5)
    rest = api.get(V1, filter="state:ENABLED", pageSize=100, pageToken=first["nextPageToken"])
    assert [one["config"]["name"] for one in first["services"] + rest["services"]] == names
    assert enabled[0]["name"].startswith(f"projects/{NUMBER}/services/")
    api.get(V1, filter="title:TPU", status=400)


def test_several_are_enabled_at_once_or_none(api: Client) -> None:
    error = api.post(f"{V1}:batchEnable", {"serviceIds": [TPU, "made.up"]}, status=403)["error"]
    assert "made.up" in error["message"]
    assert api.get(f"{V1}/{TPU}")["state"] == "DISABLED"
    wanted = [TPU, "iam.googleapis.com"]
    done = api.post(f"{V1}:batchEnable", {"serviceIds": wanted})
    assert [one["config"]["name"] for one in done["response"]["services"]] == wanted
    assert {one["state"] for one in done["response"]["services"]} == {"ENABLED"}
    assert done["metadata"]["resourceNames"][0] == f"projects/{NUMBER}/services/{TPU}"
    assert done["response"]["@type"].endswith(".v1.BatchEnableServicesResponse")
    again = api.post(f"{V1}:batchEnable", {"serviceIds": wanted})
    assert again["name"] == "operations/noop.DONE_OPERATION"
    assert api.get(f"serviceusage.googleapis.com/v1/{again['name']}")["done"]


def test_an_api_that_others_need_is_disabled_with_them_or_not_at_all(api: Client) -> None:
    api.post(f"{V1}/{TPU}:enable", {})
    compute = "compute.googleapis.com"
    error = api.post(f"{V1}/{compute}:disable", {}, status=400)["error"]
    assert TPU in error["message"]
    api.post(f"{V1}/{compute}:disable", {"disableDependentServices": True})
    assert api.get(f"{V1}/{TPU}")["state"] == "DISABLED"


def test_terraform_asks_for_no_look_at_an_apis_usage_and_another_look_is_not_played(
    api: Client,
) -> None:
    api.post(f"{V1}/{TPU}:enable", {})
    error = api.post(f"{V1}/{TPU}:disable", {"checkIfServiceHasUsage": "CHECK"}, status=501)
    assert "keeps no usage" in str(error)
    api.post(f"{V1}/{TPU}:disable", {"checkIfServiceHasUsage": "SKIP"})
    assert api.get(f"{V1}/{TPU}")["state"] == "DISABLED"


def test_an_unknown_api_is_refused_as_one_that_may_not_be_seen(api: Client) -> None:
    error = api.post(f"{V1}/made.up:enable", {}, status=403)["error"]
    reason = error["details"][0]["reason"]
    assert reason == "SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED"


def test_the_identity_of_a_service_is_the_one_that_policies_name(api: Client) -> None:
    operation = api.post(f"{BETA}/{TPU}:generateServiceIdentity")
    assert operation["response"]["email"] == f"service-{NUMBER}@cloud-tpu.iam.gserviceaccount.com"
    assert operation["response"]["@type"].endswith(".v1beta1.ServiceIdentity")


def test_an_api_without_a_service_agent_has_no_identity(api: Client) -> None:
    operation = api.post(f"{BETA}/bigquery.googleapis.com:generateServiceIdentity")
    assert set(operation["response"]) == {"@type"}
    operation = api.post(f"{BETA}/sqladmin.googleapis.com:generateServiceIdentity")
    assert "@gcp-sa-cloud-sql." in operation["response"]["email"]


def test_a_viewer_may_look_and_not_enable(api: Client) -> None:
    url = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = api.post(f"{url}:getIamPolicy")
    policy["bindings"].append({"role": "roles/viewer", "members": ["user:v@example.com"]})
    api.post(f"{url}:setIamPolicy", {"policy": policy})
    viewer = api.as_member("user:v@example.com")
    viewer.get(V1)
    viewer.post(f"{V1}/{TPU}:enable", {}, status=403)


class TestWithRealLatency:
    @pytest.fixture
    def latency(self) -> Latency:
        return "real"

    def test_a_just_enabled_api_keeps_failing_for_a_while(
        self, api: Client, clock: VirtualClock
    ) -> None:
        operation = api.post(f"{V1}/{TPU}:enable", {})
        assert set(operation) == {"name"}
        poll = f"serviceusage.googleapis.com/v1/{operation['name']}"
        clock.advance(16)
        assert api.get(poll)["response"]["service"]["state"] == "ENABLED"
        assert api.get(poll.replace("v1/", "v1beta1/"))["done"]
        api.get(NODES, status=403)
        clock.advance(30)
        api.get(NODES)
