"""Budgets of a billing account. They are kept and checked; nothing here costs, so none alerts."""

from __future__ import annotations

import uuid
from typing import Any

from localcloud.core import access, projects
from localcloud.core.call import Call, Json, page
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Collection
from localcloud.core.store import Record
from localcloud.services import iam_policy
from localcloud.services.billing import accounts
from localcloud.services.billing.api import BUDGET, BUDGETS_API, account_name, account_resources
from localcloud.services.monitoring.channels import CHANNEL
from localcloud.services.pubsub.topics import TOPIC

_BUDGETS = Collection(BUDGETS_API, "billingAccounts.budgets", "billing.budgets", account_resources)
_MOST_CHANNELS = 5
ALERTER = "serviceAccount:billing-budget-alert@system.gserviceaccount.com"
"""Who publishes a budget's messages; Google lets it publish when a topic is connected."""


@_BUDGETS.method("create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a budget."""
    name = f"{account_name(call)}/budgets/{uuid.uuid4()}"
    return _put(cloud, call, name, dict(call.body))


@_BUDGETS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one budget."""
    return _load(cloud, call)


@_BUDGETS.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the budgets of an account."""
    found = cloud.store.items(BUDGET, f"{account_name(call)}/")
    return page(call, "budgets", [record for _, record in found])


@_BUDGETS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; what is not sent is taken away."""
    with cloud.store.locked():
        record = _load(cloud, call)
        if call.body.get("etag", record["etag"]) != record["etag"]:
            raise ApiError(409, "The budget's etag is stale.", status="ABORTED")
        mask = call.mask()
        for path in mask or list(call.body):
            _take_over(record, call.body, path.split("."))
        return _put(cloud, call, record["name"], record)


@_BUDGETS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete a budget."""
    cloud.store.delete(BUDGET, _load(cloud, call)["name"])
    return {}


def _load(cloud: Cloud, call: Call) -> Record:
    name = f"{account_name(call)}/budgets/{call.params['budgetsId']}"
    return cloud.store.load(BUDGET, name, ApiError(404, f"Budget {name} was not found."))


def _put(cloud: Cloud, call: Call, name: str, wanted: Json) -> Json:
    record = wanted | {"name": name, "etag": f"{cloud.operations.number():x}"}
    record["amount"] = _amount(accounts.load(cloud, account_name(call)), wanted.get("amount") or {})
    record["budgetFilter"] = _filter(cloud, wanted.get("budgetFilter") or {})
    record["thresholdRules"] = [_rule(rule) for rule in wanted.get("thresholdRules") or []]
    rule = {key: value for key, value in (wanted.get("notificationsRule") or {}).items() if value}
    _connect(cloud, call, rule)
    record["notificationsRule"] = rule
    cloud.store.put(BUDGET, name, record)
    return record


def _amount(account: Record, amount: Json) -> Json:
    if "lastPeriodAmount" in amount:
        return {"lastPeriodAmount": {}}
    money = amount.get("specifiedAmount")
    if not money:
        raise invalid("amount must have specified_amount or last_period_amount.")
    currency = money.get("currencyCode") or account["currencyCode"]
    if currency != account["currencyCode"]:
        raise invalid(
            f"The currency code {currency} must match the billing account's currency "
            f"{account['currencyCode']}."
        )
    if int(money.get("units") or 0) < 0:
        raise invalid("amount.specified_amount.units must not be negative.")
    return {"specifiedAmount": money | {"currencyCode": currency}}


def _filter(cloud: Cloud, wanted: Json) -> Json:
    """Return the filter with Google's defaults, and projects by their numbers."""
    result = {"creditTypesTreatment": "INCLUDE_ALL_CREDITS", **wanted}
    if "customPeriod" not in result:
        result.setdefault("calendarPeriod", "MONTH")
    named = []
    for project in wanted.get("projects") or []:
        record = projects.find(cloud, project.removeprefix("projects/"))
        if record is None:
            raise invalid(f"{project} does not exist.")
        named.append(f"projects/{record['projectNumber']}")
    if named:
        result["projects"] = named
    return {key: value for key, value in result.items() if value not in ({}, [])}


def _rule(rule: Json) -> Json:
    if float(rule.get("thresholdPercent", 0)) < 0:
        raise invalid("threshold_percent must not be negative.")
    return {"spendBasis": "CURRENT_SPEND", **rule}


def _connect(cloud: Cloud, call: Call, rule: Json) -> None:
    """Check where the alerts go, and let Google publish to the topic.

    Raises:
        ApiError: 400 for what is not there, 403 where the caller may not let Google publish.
    """
    channels = rule.get("monitoringNotificationChannels", [])
    if len(channels) > _MOST_CHANNELS:
        raise invalid(f"A budget has at most {_MOST_CHANNELS} notification channels.")
    for channel in channels:
        if cloud.store.get(CHANNEL, channel) is None:
            raise invalid(f"The notification channel {channel} does not exist.")
    topic = rule.get("pubsubTopic")
    if not topic:
        return
    rule.setdefault("schemaVersion", "1.0")
    if cloud.store.get(TOPIC, topic) is None:
        raise invalid(f"The Pub/Sub topic {topic} does not exist.")
    resources = [topic, "/".join(topic.split("/")[:2])]
    access.require(cloud, call.principal, "pubsub.topics.setIamPolicy", resources)
    iam_policy.grant(cloud, topic, "roles/pubsub.publisher", ALERTER)


def _take_over(target: Json, source: Json, path: list[str]) -> None:
    """Make the value at `path` what it is in `source`, also when it is not there."""
    *parents, last = path
    sent: Any = source
    for name in parents:
        target = target.setdefault(name, {})
        sent = (sent or {}).get(name)
    target.pop(last, None)
    if sent and sent.get(last) not in (None, ""):
        target[last] = sent[last]
