from __future__ import annotations

from typing import Any

import pytest

from localcloud.core import projects
from localcloud.core.call import Json, Principal
from localcloud.core.cloud import DEVELOPER, Cloud
from localcloud.testing import Client

PROJECT = projects.DEFAULT_PROJECT
NUMBER = projects.number(PROJECT)
BILLING = "cloudbilling.googleapis.com/v1"
PROJECTS = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
TOPIC = f"projects/{PROJECT}/topics/alerts"
TOPIC_URL = f"pubsub.googleapis.com/v1/{TOPIC}"
CHANNELS = f"monitoring.googleapis.com/v3/projects/{PROJECT}/notificationChannels"
EMAIL = {"type": "email", "labels": {"email_address": "me@example.com"}}
MANAGER = "user:manager@example.com"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("billingbudgets.googleapis.com", "pubsub.googleapis.com", "iam.googleapis.com")


@pytest.fixture
def account(api: Client) -> str:
    name: str = api.get(f"{BILLING}/projects/{PROJECT}/billingInfo")["billingAccountName"]
    return name


@pytest.fixture
def budgets(api: Client, account: str) -> str:
    """The URL of the account's budgets; the caller names its project, as clients have to."""
    api.session.headers["X-Goog-User-Project"] = PROJECT
    return f"billingbudgets.googleapis.com/v1/{account}/budgets"


def budget(**rest: Any) -> Json:
    return {
        "displayName": "tpu-stack-dev",
        "amount": {"specifiedAmount": {"units": "500"}},
        "thresholdRules": [{"thresholdPercent": 0.5}],
        "budgetFilter": {"projects": [f"projects/{PROJECT}"]},
        **rest,
    }


def test_a_budget_is_completed_with_the_accounts_currency_and_googles_defaults(
    api: Client, budgets: str
) -> None:
    made = api.post(budgets, budget())
    assert made["amount"]["specifiedAmount"] == {"units": "500", "currencyCode": "USD"}
    assert made["budgetFilter"]["projects"] == [f"projects/{NUMBER}"]
    assert made["budgetFilter"]["calendarPeriod"] == "MONTH"
    assert made["thresholdRules"] == [{"thresholdPercent": 0.5, "spendBasis": "CURRENT_SPEND"}]
    assert api.get(budgets)["budgets"] == [made]
    url = f"billingbudgets.googleapis.com/v1/{made['name']}"
    mask = "amount.specifiedAmount.units,notificationsRule.pubsubTopic"
    more = {"amount": {"specifiedAmount": {"units": "900"}}}
    assert api.patch(url, more, updateMask=mask)["amount"]["specifiedAmount"]["units"] == "900"
    assert api.get(url)["displayName"] == "tpu-stack-dev"
    api.patch(url, {"etag": "old"}, updateMask="displayName", status=409)
    api.delete(url)
    api.get(url, status=404)


@pytest.mark.parametrize(
    "wrong",
    [
        {"amount": {"specifiedAmount": {"units": "5", "currencyCode": "EUR"}}},
        {"amount": {}},
        {"thresholdRules": [{"thresholdPercent": -1}]},
        {"budgetFilter": {"projects": ["projects/not-there"]}},
        {"notificationsRule": {"pubsubTopic": f"projects/{PROJECT}/topics/not-there"}},
        {"notificationsRule": {"monitoringNotificationChannels": ["projects/p/x/1"]}},
        {"notificationsRule": {"monitoringNotificationChannels": ["x"] * 6}},
    ],
    ids=str,
)
def test_a_wrong_budget_is_refused(api: Client, budgets: str, wrong: Json) -> None:
    api.post(budgets, budget(**wrong), status=400)
    assert api.get(budgets) == {}


def test_alerts_go_to_channels_and_to_a_topic_that_google_may_publish_to(
    api: Client, budgets: str
) -> None:
    channel = api.post(CHANNELS, EMAIL)["name"]
    api.put(TOPIC_URL, {"labels": {"a": "b"}})
    rule = {"pubsubTopic": TOPIC, "monitoringNotificationChannels": [channel]}
    made = api.post(budgets, budget(notificationsRule=rule))
    assert made["notificationsRule"] == rule | {"schemaVersion": "1.0"}
    (binding,) = api.get(f"{TOPIC_URL}:getIamPolicy")["bindings"]
    assert binding["role"] == "roles/pubsub.publisher"


def test_a_caller_without_a_quota_project_or_with_one_that_lacks_the_api_is_refused(
    api: Client, budgets: str, cloud: Cloud
) -> None:
    api.session.headers.pop("X-Goog-User-Project")
    api.session.headers["Authorization"] = f"Bearer {cloud.token(Principal(DEVELOPER))}"
    assert "quota project" in api.get(budgets, status=403)["error"]["message"]
    api.session.headers["X-Goog-User-Project"] = PROJECT
    service = "billingbudgets.googleapis.com"
    api.post(f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services/{service}:disable", {})
    reason = api.get(budgets, status=403)["error"]["details"][0]["reason"]
    assert reason == "SERVICE_DISABLED"


def test_a_service_accounts_calls_count_for_its_own_project(
    api: Client, account: str, budgets: str
) -> None:
    accounts = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
    member = f"serviceAccount:{api.post(accounts, {'accountId': 'manager'})['email']}"
    api.as_member(member).get(budgets, status=403)
    policy = api.get(f"{BILLING}/{account}:getIamPolicy")
    policy["bindings"].append({"role": "roles/billing.costsManager", "members": [member]})
    api.post(f"{BILLING}/{account}:setIamPolicy", {"policy": policy})
    api.as_member(member).post(budgets, budget())


def test_a_budget_has_the_currency_of_its_account_and_no_other(api: Client, budgets: str) -> None:
    (euros,) = (one["name"] for one in api.get(f"{BILLING}/billingAccounts")["billingAccounts"]
                if one["currencyCode"] == "EUR")  # fmt: skip
    url = f"billingbudgets.googleapis.com/v1/{euros}/budgets"
    api.post(
        url, budget(amount={"specifiedAmount": {"units": "5", "currencyCode": "USD"}}), status=400
    )
    assert api.post(url, budget())["amount"]["specifiedAmount"]["currencyCode"] == "EUR"


def test_a_billing_account_is_shown_only_to_callers_with_permission(
    api: Client, account: str
) -> None:
    names = [one["name"] for one in api.get(f"{BILLING}/billingAccounts")["billingAccounts"]]
    assert (names[0], len(names)) == (account, 2)
    stranger = api.as_member("user:stranger@example.com")
    assert stranger.get(f"{BILLING}/billingAccounts") == {}
    stranger.get(f"{BILLING}/{account}", status=403)
    stranger.get(f"{BILLING}/projects/{PROJECT}/billingInfo", status=403)
    url = f"{BILLING}/projects/{PROJECT}/billingInfo"
    assert not api.put(url, {"billingAccountName": ""})["billingEnabled"]
    api.put(url, {"billingAccountName": "billingAccounts/000000-000000-000000"}, status=403)
    assert api.put(url, {"billingAccountName": account})["billingEnabled"]


def test_a_channel_and_a_topic_are_made_changed_and_deleted(api: Client) -> None:
    url = f"monitoring.googleapis.com/v3/{api.post(CHANNELS, EMAIL)['name']}"
    assert api.patch(url, {"displayName": "Me"}, updateMask="displayName")["displayName"] == "Me"
    api.patch(url, {"type": "pubsub"}, status=400)
    api.post(CHANNELS, {"type": "email", "labels": {"email_address": "nobody"}}, status=400)
    api.post(CHANNELS, {"type": "pagerduty"}, status=501)
    assert len(api.get(CHANNELS)["notificationChannels"]) == 1
    api.delete(url)
    api.get(url, status=404)
    api.put(TOPIC_URL, {})
    api.put(TOPIC_URL, {}, status=409)
    assert len(api.get(f"pubsub.googleapis.com/v1/projects/{PROJECT}/topics")["topics"]) == 1
    for wrong in ("goog-x", "ärger"):
        api.put(f"pubsub.googleapis.com/v1/projects/{PROJECT}/topics/{wrong}", {}, status=400)
    change = {"topic": {"labels": {"c": "d"}}, "updateMask": "labels"}
    assert api.patch(TOPIC_URL, change)["labels"] == {"c": "d"}
    # Google's provider has the mask in the query.
    assert "labels" not in api.patch(TOPIC_URL, {"topic": {}}, updateMask="labels")
    api.delete(TOPIC_URL)
    api.get(TOPIC_URL, status=404)
