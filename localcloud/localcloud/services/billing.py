"""Cloud Billing: accounts, which of them pays for which project, and budgets.

There is one account in US dollars, which pays for the default project, and one in euros.
"""

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from localcloud.core import Api, ApiError, Cloud, Collection, Record, access, invalid, projects
from localcloud.core.call import Call, Json, page
from localcloud.core.cloud import DEVELOPER, cloud_started
from localcloud.services import iam_policy, kind, monitoring, pubsub

# Neither has a project in its paths: the caller's project must have the API enabled.
API = Api("cloudbilling", ("v1",), gated=False)
BUDGETS_API = Api("billingbudgets", ("v1",))

ACCOUNT = "billing-account"
"""The store's kind of billing accounts, by `billingAccounts/ID`."""
BUDGET = "budget"
"""The store's kind of budgets, by `billingAccounts/ID/budgets/UUID`."""


def account_name(call: Call) -> str:
    """Return the full name of the billing account in the path."""
    return f"billingAccounts/{call.params['billingAccountsId']}"


def account_resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return whose policy counts: the account's."""
    return (account_name(call),)


ACCOUNTS = Collection(API, "billingAccounts", "billing.accounts", account_resources)


DEFAULT_ACCOUNT = "billingAccounts/0A1B2C-3D4E5F-607182"
_CURRENCIES = {DEFAULT_ACCOUNT: "USD", "billingAccounts/0A1B2C-3D4E5F-607183": "EUR"}
LINK = "billing-link"
"""The store's kind of projects' billing accounts, by `projects/ID`."""


@cloud_started
def open_accounts(cloud: Cloud) -> None:
    """Open the accounts, once.

    The developer administers both: a project can be moved to the one in euros and back.
    """
    with cloud.store.locked():
        if cloud.store.get(ACCOUNT, DEFAULT_ACCOUNT) is not None:
            return
        for name, currency in _CURRENCIES.items():
            record = {"name": name, "displayName": "My Billing Account", "open": True}
            cloud.store.put(ACCOUNT, name, record | {"currencyCode": currency})
            iam_policy.grant(cloud, name, "roles/billing.admin", DEVELOPER)
        link = {"billingAccountName": DEFAULT_ACCOUNT}
        cloud.store.put(LINK, f"projects/{projects.DEFAULT_PROJECT}", link)


def load_account(cloud: Cloud, name: str) -> Record:
    """Return the account; 403 without one, as Google answers for a missing permission, too.

    An account's existence is a secret: 404 would tell it.
    """
    return cloud.store.load(ACCOUNT, name, ApiError(403, "The caller does not have permission"))


@ACCOUNTS.method("get")
def _get_account(cloud: Cloud, call: Call) -> Json:
    return load_account(cloud, account_name(call))


@API.method("billingAccounts.list")
def _list_accounts(cloud: Cloud, call: Call) -> Json:
    # No permission is asked for: a caller sees the accounts that they may get.
    may = partial(access.has, cloud, call.principal, "billing.accounts.get")
    found = [record for name, record in cloud.store.items(ACCOUNT) if may([name])]
    return page(call, "billingAccounts", found)


iam_policy.serve(ACCOUNTS, lambda cloud, call: str(load_account(cloud, account_name(call))["name"]))


@API.method("projects.getBillingInfo", permission="resourcemanager.projects.get")
def _get_link(cloud: Cloud, call: Call) -> Json:
    if projects.find(cloud, call.project) is None:
        raise ApiError(403, "The caller does not have permission")
    return _link_view(cloud, call.project)


@API.method(
    "projects.updateBillingInfo", permission="resourcemanager.projects.createBillingAssignment"
)
def _update_link(cloud: Cloud, call: Call) -> Json:
    # An empty name switches billing off, which takes no right on an account.
    name = call.body.get("billingAccountName", "")
    if name:
        load_account(cloud, name)
        permission = "billing.resourceAssociations.create"
        access.require(cloud, call.principal, permission, [name])
    cloud.store.put(LINK, f"projects/{call.project}", {"billingAccountName": name})
    return _link_view(cloud, call.project)


# A project that was never linked looks like one whose billing is switched off.
def _link_view(cloud: Cloud, project: str) -> Json:
    link = cloud.store.get(LINK, f"projects/{project}") or {}
    account = link.get("billingAccountName", "")
    return {
        "name": f"projects/{project}/billingInfo",
        "projectId": project,
        "billingAccountName": account,
        "billingEnabled": bool(account),
    }


# Budgets: kept and checked. Nothing here costs anything, so none alerts.

_BUDGETS = Collection(BUDGETS_API, "billingAccounts.budgets", "billing.budgets", account_resources)
# By the discovery document (`NotificationsRule.monitoringNotificationChannels`).
_MOST_CHANNELS = 5
ALERTER = "serviceAccount:billing-budget-alert@system.gserviceaccount.com"
"""Who publishes a budget's messages; Google lets it publish when a topic is connected."""


_BUDGET = kind.Kind(
    collection=_BUDGETS,
    store=BUDGET,
    items="budgets",
    missing=lambda name: f"Budget {name} was not found.",
    parent=account_name,
    listed=account_resources,
)
kind.serve(_BUDGET)


@_BUDGETS.method("create")
def _create_budget(cloud: Cloud, call: Call) -> Json:
    name = f"{account_name(call)}/budgets/{uuid.uuid4()}"
    return _put_budget(cloud, call, name, dict(call.body))


@_BUDGETS.method("patch", verb="update")
def patch_budget(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; what is not sent is removed."""
    with cloud.store.locked():
        record = _BUDGET.load(cloud, call)
        if call.body.get("etag", record["etag"]) != record["etag"]:
            raise ApiError(409, "The budget's etag is stale.", status="ABORTED")
        mask = call.mask()
        for path in mask or list(call.body):
            _copy_path(record, call.body, path.split("."))
        return _put_budget(cloud, call, record["name"], record)


# A budget is checked as a whole, also after a patch: parts may contradict each other.
def _put_budget(cloud: Cloud, call: Call, name: str, wanted: Json) -> Json:
    record = wanted | {"name": name, "etag": f"{cloud.operations.number():x}"}
    account, rules = load_account(cloud, account_name(call)), wanted.get("thresholdRules") or []
    record["amount"] = _budget_amount(account, wanted.get("amount") or {})
    record["budgetFilter"] = _budget_filter(cloud, wanted.get("budgetFilter") or {})
    if any(float(rule.get("thresholdPercent", 0)) < 0 for rule in rules):
        raise invalid("threshold_percent must not be negative.")
    record["thresholdRules"] = [{"spendBasis": "CURRENT_SPEND", **rule} for rule in rules]
    rule = {key: value for key, value in (wanted.get("notificationsRule") or {}).items() if value}
    _connect_alerts(cloud, call, rule)
    record["notificationsRule"] = rule
    cloud.store.put(BUDGET, name, record)
    return record


# Units are text, as all int64 in JSON. The currency "must match the currency of the billing
# account" (the discovery document).
def _budget_amount(account: Record, amount: Json) -> Json:
    if "lastPeriodAmount" in amount:
        return {"lastPeriodAmount": {}}
    money = amount.get("specifiedAmount")
    if not money:
        raise invalid("amount must have specified_amount or last_period_amount.")
    own = account["currencyCode"]
    if (currency := money.get("currencyCode") or own) != own:
        must = f"must match the billing account's currency {own}."
        raise invalid(f"The currency code {currency} {must}")
    if int(money.get("units") or 0) < 0:
        raise invalid("amount.specified_amount.units must not be negative.")
    return {"specifiedAmount": money | {"currencyCode": currency}}


def _budget_filter(cloud: Cloud, wanted: Json) -> Json:
    """Return the filter with Google's defaults, and projects by their numbers.

    The numbers are what later reads show, whatever the caller wrote.
    """
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


def _connect_alerts(cloud: Cloud, call: Call, rule: Json) -> None:
    """Check where the alerts go, and let Google publish to the topic if the caller may.

    Google sets the topic's policy when a budget is saved, in the name of the person who saves it.
    """
    channels = rule.get("monitoringNotificationChannels", [])
    if len(channels) > _MOST_CHANNELS:
        raise invalid(f"A budget has at most {_MOST_CHANNELS} notification channels.")
    for channel in channels:
        if cloud.store.get(monitoring.CHANNEL, channel) is None:
            raise invalid(f"The notification channel {channel} does not exist.")
    topic = rule.get("pubsubTopic")
    if not topic:
        return
    rule.setdefault("schemaVersion", "1.0")
    if cloud.store.get(pubsub.TOPIC, topic) is None:
        raise invalid(f"The Pub/Sub topic {topic} does not exist.")
    resources = [topic, "/".join(topic.split("/")[:2])]
    access.require(cloud, call.principal, "pubsub.topics.setIamPolicy", resources)
    iam_policy.grant(cloud, topic, "roles/pubsub.publisher", ALERTER)


def _copy_path(target: Json, source: Json, path: list[str]) -> None:
    """Make the value at `path` what it is in `source`, also when it is not there.

    Masks of budgets go into messages: `notifications_rule.pubsub_topic`.
    """
    *parents, last = path
    sent: Any = source
    for name in parents:
        target = target.setdefault(name, {})
        sent = (sent or {}).get(name)
    target.pop(last, None)
    if sent and sent.get(last) not in (None, ""):
        target[last] = sent[last]
