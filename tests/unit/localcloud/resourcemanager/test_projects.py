from __future__ import annotations

from typing import Any

import pytest

from localcloud.core import projects
from localcloud.testing import Client

V1 = "cloudresourcemanager.googleapis.com/v1/projects"
PROJECT = projects.DEFAULT_PROJECT
FOLDER = {"type": "folder", "id": "1"}
OWNER = {"role": "roles/owner", "members": ["user:developer@tpu-stack.local"]}


def policy(api: Client) -> dict[str, Any]:
    return api.post(f"{V1}/{PROJECT}:getIamPolicy")


def test_a_project_is_shown_by_id_and_by_number(api: Client) -> None:
    number = projects.number(PROJECT)
    assert api.get(f"{V1}/{number}")["projectId"] == PROJECT
    assert api.get(f"{V1}/{PROJECT}")["projectNumber"] == number


def test_an_unknown_project_looks_like_one_without_access(api: Client) -> None:
    answer = api.get(f"{V1}/no-such-project", status=403)
    assert answer["error"]["status"] == "PERMISSION_DENIED"


def test_lists_show_the_callers_projects_that_fit_the_filter(api: Client) -> None:
    [listed] = api.get(V1, filter="lifecycleState:ACTIVE")["projects"]
    assert listed["projectId"] == PROJECT
    assert api.get(V1, filter="lifecycleState:DELETE_REQUESTED") == {}
    [found] = api.get(V1, filter="id:tpu-*")["projects"]
    assert found["projectId"] == PROJECT
    assert api.as_member("user:stranger@example.com").get(V1) == {}
    assert "labels" in api.get(V1, filter="labels.a:b", status=400)["error"]["message"]


def test_a_new_project_is_owned_by_its_creator(api: Client) -> None:
    grace = api.as_member("user:grace@example.com")
    sent = {"projectId": "grace-sandbox", "name": "Sandbox", "labels": {"a": "b"}}
    operation = grace.post(V1, sent)
    done = grace.get(f"cloudresourcemanager.googleapis.com/v1/{operation['name']}")
    assert (done["done"], done["response"]["projectId"]) == (True, "grace-sandbox")
    assert done["response"]["labels"] == {"a": "b"}
    assert (done["metadata"]["gettable"], done["metadata"]["ready"]) == (True, True)
    assert grace.get(f"{V1}/grace-sandbox")["name"] == "Sandbox"
    owner = {"role": "roles/owner", "members": ["user:grace@example.com"]}
    assert owner in grace.post(f"{V1}/grace-sandbox:getIamPolicy")["bindings"]
    api.get(f"{V1}/grace-sandbox", status=403)
    services = "serviceusage.googleapis.com/v1/projects/grace-sandbox/services"
    assert grace.get(services, filter="state:ENABLED") == {}
    grace.post(f"{services}/cloudapis.googleapis.com:enable", {})
    enabled = grace.get(services, filter="state:ENABLED")["services"]
    assert "storage.googleapis.com" in [one["config"]["name"] for one in enabled]
    grace.post(f"{services}/compute.googleapis.com:enable", {})
    networks = "compute.googleapis.com/compute/v1/projects/grace-sandbox/global/networks"
    assert grace.get(networks)["items"][0]["name"] == "default"


@pytest.mark.parametrize(
    ("member", "body", "code", "said"),
    [
        ("user:a@x.org", {"projectId": PROJECT}, 409, "already exists"),
        ("user:a@x.org", {"projectId": "Upper"}, 400, "6 to 30 lower-case"),
        ("user:a@x.org", {"projectId": "ends-with-"}, 400, "6 to 30 lower-case"),
        ("user:a@x.org", {}, 400, "6 to 30 lower-case"),
        (
            "user:a@x.org",
            {"projectId": "fine-one", "parent": {"type": "folder", "id": "1"}},
            403,
            "permission",
        ),
    ],
)
def test_a_wrong_project_is_not_made(
    api: Client, member: str, body: dict[str, Any], code: int, said: str
) -> None:
    refusal = api.as_member(member).post(V1, body, status=code)
    assert said in refusal["error"]["message"]


def test_a_service_account_makes_no_project_outside_an_organization(api: Client) -> None:
    services = f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
    api.post(f"{services}/iam.googleapis.com:enable", {})
    account = api.post(
        f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "a-robot"}
    )
    robot = api.as_member(f"serviceAccount:{account['email']}")
    refusal = robot.post(V1, {"projectId": "fine-one"}, status=403)
    assert "cannot create projects without a parent" in refusal["error"]["message"]


def test_a_policy_is_replaced_and_its_etag_changes(api: Client) -> None:
    before = policy(api)
    viewer = {"role": "roles/viewer", "members": ["user:b@x.org", "user:a@x.org"]}
    body = {"policy": {"etag": before["etag"], "version": 3, "bindings": [OWNER, viewer]}}
    written = api.post(f"{V1}/{PROJECT}:setIamPolicy", body)
    assert written["etag"] != before["etag"]
    assert {"role": "roles/viewer", "members": ["user:a@x.org", "user:b@x.org"]} in written[
        "bindings"
    ]
    assert policy(api) == written
    # Writing the same again is no change.
    assert api.post(f"{V1}/{PROJECT}:setIamPolicy", {"policy": written}) == written


def test_a_stale_etag_is_a_conflict_that_names_both(api: Client) -> None:
    before = policy(api)
    viewer = {"role": "roles/viewer", "members": ["user:a@x.org"]}
    body = {"policy": {"etag": before["etag"], "bindings": [OWNER, viewer]}}
    after = api.post(f"{V1}/{PROJECT}:setIamPolicy", body)
    editor = {"role": "roles/editor", "members": ["user:a@x.org"]}
    body = {"policy": {"etag": before["etag"], "bindings": [OWNER, editor]}}
    error = api.post(f"{V1}/{PROJECT}:setIamPolicy", body, status=409)["error"]
    assert error["status"] == "ABORTED"
    assert "There were concurrent policy changes" in error["message"]
    assert before["etag"] in error["message"]
    assert after["etag"] in error["message"]
    assert policy(api) == after


@pytest.mark.parametrize(
    ("role", "member", "said"),
    [
        ("roles/nothing.admin", "user:a@x.org", "Role roles/nothing.admin is not supported"),
        (
            "roles/viewer",
            f"serviceAccount:gone@{PROJECT}.iam.gserviceaccount.com",
            f"Service account gone@{PROJECT}.iam.gserviceaccount.com does not exist.",
        ),
        ("roles/viewer", "a@x.org", "must be allUsers"),
        ("roles/viewer", "robot:a@x.org", "must be allUsers"),
        ("roles/viewer", "user:a", "not an e-mail address"),
        ("roles/viewer", "allUsers", "not allowed"),
    ],
)
def test_a_policy_with_an_unknown_role_or_member_is_refused(
    api: Client, role: str, member: str, said: str
) -> None:
    before = policy(api)
    body = {"policy": {"bindings": [OWNER, {"role": role, "members": [member]}]}}
    error = api.post(f"{V1}/{PROJECT}:setIamPolicy", body, status=400)["error"]
    assert said in error["message"]
    assert policy(api) == before


def test_the_last_owner_stays(api: Client) -> None:
    error = api.post(f"{V1}/{PROJECT}:setIamPolicy", {"policy": {"bindings": []}}, status=400)
    assert "at least one owner" in error["error"]["message"]


def test_a_role_gives_its_permissions_and_no_others(api: Client) -> None:
    member = "user:viewer@example.com"
    viewer = {"role": "roles/tpu.viewer", "members": [member]}
    api.post(f"{V1}/{PROJECT}:setIamPolicy", {"policy": {"bindings": [OWNER, viewer]}})
    wanted = ["tpu.nodes.get", "tpu.nodes.create", "compute.instances.get"]
    body = {"permissions": wanted}
    answer = api.as_member(member).post(f"{V1}/{PROJECT}:testIamPermissions", body)
    assert answer == {"permissions": ["tpu.nodes.get"]}
    stranger = api.as_member("user:stranger@example.com")
    assert stranger.post(f"{V1}/{PROJECT}:testIamPermissions", body) == {}
    refused = stranger.post(f"{V1}/{PROJECT}:getIamPolicy", status=403)["error"]
    assert refused["message"] == "The caller does not have permission"
    assert "details" not in refused


def test_a_caller_without_a_token_is_asked_for_one(api: Client) -> None:
    nobody = api.as_member("")
    assert nobody.get(V1, status=401)["error"]["status"] == "UNAUTHENTICATED"
    assert nobody.get(f"{V1}/{PROJECT}", status=401)["error"]["status"] == "UNAUTHENTICATED"
