"""Checks of the budget."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import UNSET, Problem

_ACCOUNT = re.compile(r"[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}")
_CURRENCY = re.compile(r"[A-Z]{3}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_TOPIC = re.compile(r"(projects/[^/]+/topics/)?(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)
# https://cloud.google.com/billing/docs/how-to/budgets-notification-recipients
_MOST_EMAILS = 5


def check_budget(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that account, currency, addresses and topic can exist at Google."""
    budget = settings.budget
    if budget is None:
        return
    if budget.amount is None:
        yield Problem(
            "budget.amount",
            UNSET,
            "is required in a budget",
            "Set what may be spent in a month, in whole units of the currency",
        )
    forms = (
        ("billingAccount", budget.billing_account, _ACCOUNT, "billing account", _ACCOUNTS_CURE),
        ("currency", budget.currency, _CURRENCY, "currency", "Use a code like USD or EUR"),
        ("pubsubTopic", budget.pubsub_topic, _TOPIC, "name of a topic", _TOPIC_CURE),
    )
    for name, value, form, what, cure in forms:
        if value is not None and not form.fullmatch(value):
            yield Problem(f"budget.{name}", value, f"is no {what}", cure)
    for address in budget.emails:
        if not _EMAIL.fullmatch(address):
            yield Problem(
                "budget.emails", address, "is no e-mail address", "Use one like me@example.com"
            )
    if len(set(budget.emails)) > _MOST_EMAILS:
        yield Problem(
            "budget.emails",
            list(budget.emails),
            f"are too many: a budget tells at most {_MOST_EMAILS} addresses",
            "Use the address of a group",
        )
    for name, percents in (
        ("emails", budget.emails),
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
