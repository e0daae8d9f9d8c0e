from __future__ import annotations

from typing import Any

import pytest

from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.testing import Client

PROJECT = projects.DEFAULT_PROJECT
ACCOUNTS = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
EMAIL = f"trainer@{PROJECT}.iam.gserviceaccount.com"
MEMBER = f"serviceAccount:{EMAIL}"
POLICY = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
CREDENTIALS = "iamcredentials.googleapis.com/v1/projects/-/serviceAccounts"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("iam.googleapis.com", "iamcredentials.googleapis.com")


@pytest.fixture
def account(api: Client) -> dict[str, Any]:
    return api.post(ACCOUNTS, {"accountId": "trainer", "serviceAccount": {"displayName": "T"}})


def grant(api: Client, role: str, member: str = MEMBER) -> None:
    policy = api.post(f"{POLICY}:getIamPolicy")
    policy["bindings"].append({"role": role, "members": [member]})
    api.post(f"{POLICY}:setIamPolicy", {"policy": policy})


def members(api: Client, role: str) -> list[str]:
    bindings = api.post(f"{POLICY}:getIamPolicy")["bindings"]
    return [name for binding in bindings if binding["role"] == role for name in binding["members"]]


def test_an_account_is_found_by_its_address_in_any_project(
    api: Client, account: dict[str, Any]
) -> None:
    assert account["email"] == EMAIL
    assert api.get(f"{ACCOUNTS}/{EMAIL}") == account
    anywhere = f"iam.googleapis.com/v1/projects/-/serviceAccounts/{EMAIL}"
    assert api.get(anywhere) == account
    assert api.get(ACCOUNTS)["accounts"] == [account]


def test_lists_come_in_pages(api: Client) -> None:
    for number in range(3):
        api.post(ACCOUNTS, {"accountId": f"account-{number}"})
    first = api.get(ACCOUNTS, pageSize=2)
    assert len(first["accounts"]) == 2
    rest = api.get(ACCOUNTS, pageSize=2, pageToken=first["nextPageToken"])
    assert [one["email"].partition("@")[0] for one in rest["accounts"]] == ["account-2"]


@pytest.mark.parametrize("account_id", ["", "short", "Upper-case", "-begins", "ends-", "a" * 31])
def test_a_wrong_account_id_is_refused(api: Client, account_id: str) -> None:
    api.post(ACCOUNTS, {"accountId": account_id}, status=400)
    assert api.get(ACCOUNTS) == {}


def test_a_display_name_has_at_most_100_bytes(api: Client) -> None:
    for name, status in (("n" * 100, 200), ("ä" * 51, 400)):
        sent = {"accountId": "trainer", "serviceAccount": {"displayName": name}}
        api.post(ACCOUNTS, sent, status=status)


def test_a_taken_account_id_is_a_conflict(api: Client, account: dict[str, Any]) -> None:
    error = api.post(ACCOUNTS, {"accountId": "trainer"}, status=409)["error"]
    assert "already exists within project" in error["message"]


def test_display_name_and_description_change_and_nothing_else(
    api: Client, account: dict[str, Any]
) -> None:
    whole = {**account, "displayName": "outside of the mask", "description": "new"}
    sent = {"serviceAccount": whole, "updateMask": "description"}
    changed = api.patch(f"{ACCOUNTS}/{EMAIL}", sent)
    assert changed == {"name": account["name"], "description": "new"}
    assert api.get(f"{ACCOUNTS}/{EMAIL}")["displayName"] == "T"
    sent = {"serviceAccount": {"email": "x@y.z"}, "updateMask": "email"}
    api.patch(f"{ACCOUNTS}/{EMAIL}", sent, status=400)


def test_a_deleted_account_is_marked_in_policies(api: Client, account: dict[str, Any]) -> None:
    grant(api, "roles/viewer")
    api.delete(f"{ACCOUNTS}/{EMAIL}")
    api.get(f"{ACCOUNTS}/{EMAIL}", status=404)
    assert members(api, "roles/viewer") == [f"deleted:{MEMBER}?uid={account['uniqueId']}"]
    # A policy with the deleted member in it can still be written.
    grant(api, "roles/editor", "user:a@x.org")


def test_a_new_account_of_the_same_name_inherits_nothing(
    api: Client, account: dict[str, Any]
) -> None:
    grant(api, "roles/viewer")
    api.delete(f"{ACCOUNTS}/{EMAIL}")
    again = api.post(ACCOUNTS, {"accountId": "trainer"})
    assert again["uniqueId"] != account["uniqueId"]
    api.as_member(MEMBER).get(POLICY, status=403)


def test_tokens_of_a_disabled_or_deleted_account_stop_working(
    api: Client, account: dict[str, Any]
) -> None:
    grant(api, "roles/viewer")
    robot = api.as_member(MEMBER)
    robot.get(POLICY)
    api.post(f"{ACCOUNTS}/{EMAIL}:disable", {})
    error = robot.get(POLICY, status=401)["error"]
    assert error["details"][0]["reason"] == "ACCOUNT_STATE_INVALID"
    api.post(f"{ACCOUNTS}/{EMAIL}:enable", {})
    robot.get(POLICY)
    api.delete(f"{ACCOUNTS}/{EMAIL}")
    robot.get(POLICY, status=401)


def test_a_token_creator_gets_a_token_that_expires(
    api: Client, account: dict[str, Any], clock: VirtualClock
) -> None:
    url = f"{CREDENTIALS}/{EMAIL}:generateAccessToken"
    body = {"scope": ["https://www.googleapis.com/auth/cloud-platform"], "lifetime": "600s"}
    friend = api.as_member("user:friend@example.com")
    error = friend.post(url, body, status=403)["error"]
    assert "iam.serviceAccounts.getAccessToken" in error["message"]
    role = "roles/iam.serviceAccountTokenCreator"
    binding = {"role": role, "members": ["user:friend@example.com"]}
    api.post(f"{ACCOUNTS}/{EMAIL}:setIamPolicy", {"policy": {"bindings": [binding]}})
    grant(api, "roles/viewer")
    token = friend.post(url, body)["accessToken"]
    robot = Client(api.local_cloud, "")
    robot.session.headers["Authorization"] = f"Bearer {token}"
    assert robot.get(POLICY)["projectId"] == PROJECT
    clock.advance(601)
    assert robot.get(POLICY, status=401)["error"]["details"][0]["reason"] == "ACCESS_TOKEN_EXPIRED"


@pytest.mark.parametrize("lifetime", ["0s", "3601s", "soon", "-5s"])
def test_a_lifetime_that_google_refuses_is_refused(
    api: Client, account: dict[str, Any], lifetime: str
) -> None:
    body = {"scope": ["https://www.googleapis.com/auth/cloud-platform"], "lifetime": lifetime}
    api.post(f"{CREDENTIALS}/{EMAIL}:generateAccessToken", body, status=400)


def test_the_accounts_that_google_makes_are_there(api: Client, cloud: Cloud) -> None:
    services = f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
    api.post(f"{services}/tpu.googleapis.com:enable", {})
    number = projects.number(PROJECT)
    default = f"{number}-compute@developer.gserviceaccount.com"
    agent = f"service-{number}@cloud-tpu.iam.gserviceaccount.com"
    assert [one["email"] for one in api.get(ACCOUNTS)["accounts"]] == [default]
    assert members(api, "roles/editor") == [f"serviceAccount:{default}"]
    assert members(api, "roles/tpu.serviceAgent") == [f"serviceAccount:{agent}"]
    # The agent is in no list, but policies may name it.
    grant(api, "roles/storage.objectViewer", f"serviceAccount:{agent}")
    assert members(api, "roles/storage.objectViewer") == [f"serviceAccount:{agent}"]


def test_a_new_account_is_found_after_a_while_with_real_latencies(
    api: Client, cloud: Cloud, clock: VirtualClock
) -> None:
    one = f"{ACCOUNTS}/{EMAIL}"
    assert api.get(one, status=404)["error"]["message"] == "Unknown service account"
    cloud.latency_profile = "real"
    made = api.post(ACCOUNTS, {"accountId": "trainer"})
    said = f"Service account {made['name']} does not exist."
    assert api.get(one, status=404)["error"]["message"] == said
    api.post(f"{one}:getIamPolicy", status=404)
    policy = api.post(f"{POLICY}:getIamPolicy")
    policy["bindings"].append({"role": "roles/viewer", "members": [MEMBER]})
    refused = api.post(f"{POLICY}:setIamPolicy", {"policy": policy}, status=400)["error"]
    assert refused["message"] == f"Service account {EMAIL} does not exist."
    clock.advance(cloud.seconds("account.visible"))
    assert api.get(one) == made
