"""Checks of the messages."""

from __future__ import annotations

from collections.abc import Iterator

from infra.checks.addresses import email_problems, is_topic
from infra.checks.context import Context
from infra.cost.parts import of_stack
from infra.settings import StackSettings
from infra.settings.problems import Problem

# Notification channels of one policy: https://docs.cloud.google.com/monitoring/quotas
_MOST_EMAILS = 16


def check_messages(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse addresses and topics that can't be, and a ceiling that nobody is told of."""
    messages, topic = settings.messages, settings.messages.pubsub_topic
    yield from email_problems("messages.emails", messages.emails, _MOST_EMAILS, "an alert")
    if topic is not None and ("/" in topic or not is_topic(topic)):
        cure = "Use the name of a topic to make, like tpu-messages"
        yield Problem("messages.pubsubTopic", topic, "is no name of a topic", cure)
    elif topic is not None and settings.budget and settings.budget.own_topic == topic:
        cure = "Use another name, since the stack makes both"
        yield Problem("messages.pubsubTopic", topic, "is the topic of the budget, too", cure)
    if messages.cost_dollars is None:
        return
    if not messages.any:
        yield Problem(
            "messages.costDollars",
            messages.cost_dollars,
            "is told nobody",
            "Set messages.emails, messages.webhook or messages.pubsubTopic, or remove it",
        )
    estimate = of_stack(settings, context.stack, context.catalog)
    if unknown := [line for line in estimate.lines if line.configured is None]:
        yield Problem(
            "messages.costDollars",
            messages.cost_dollars,
            f"can't be told: the catalog has no price of {unknown[0].what} in {settings.region}",
            "Remove it, and set a budget instead",
        )
