"""Checks of the budget."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.addresses import email_problems, is_topic
from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem

_ACCOUNT = re.compile(r"[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}")
_CURRENCY = re.compile(r"[A-Z]{3}")
# https://cloud.google.com/billing/docs/how-to/budgets-notification-recipients
_MOST_EMAILS = 5


def check_budget(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that account, currency, addresses and topic can exist at Google."""
    budget = settings.budget
    if budget is None:
        return
    forms = (
        ("billingAccount", budget.billing_account, _ACCOUNT, "billing account", _ACCOUNTS_CURE),
        ("currency", budget.currency, _CURRENCY, "currency", "Use a code like USD or EUR"),
    )
    for name, value, form, what, cure in forms:
        if value is not None and not form.fullmatch(value):
            yield Problem(f"budget.{name}", value, f"is no {what}", cure)
    if budget.pubsub_topic is not None and not is_topic(budget.pubsub_topic):
        yield Problem(
            "budget.pubsubTopic", budget.pubsub_topic, "is no name of a topic", _TOPIC_CURE
        )
    yield from email_problems("budget.emails", budget.emails)
    if len(budget.emails) > _MOST_EMAILS:
        yield Problem(
            "budget.emails",
            list(budget.emails),
            f"are too many: a budget tells at most {_MOST_EMAILS} addresses",
            "Use the address of a group",
        )
    for name, percents in (
        ("thresholds", budget.thresholds),
        ("forecastThresholds", budget.forecast_thresholds),
    ):
        if len(set(percents)) < len(percents):
            yield Problem(
                f"budget.{name}", list(percents), "has one twice", "Name each of them once"
            )
    if not (budget.thresholds or budget.forecast_thresholds):
        yield Problem(
            "budget.thresholds", [], "tells nobody anything", "Name at least one, such as 100"
        )


_ACCOUNTS_CURE = "Use one like 01ABCD-234567-89EF01: `gcloud billing accounts list` shows them"
_TOPIC_CURE = "Use one like tpu-budget, or projects/PROJECT/topics/NAME of one that is there"
