"""Checks of the messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.addresses import email_problems, is_topic
from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem

# Notification channels of one policy: https://docs.cloud.google.com/monitoring/quotas
_MOST_CHANNELS = 16
_CHANNEL = re.compile(r"projects/[^/]+/notificationChannels/\d+")


def check_messages(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse channels that can't exist, and a ceiling without anyone to tell of it."""
    messages, topic = settings.messages, settings.messages.pubsub_topic
    yield from email_problems("messages.emails", messages.emails)
    for channel in messages.channels:
        if not _CHANNEL.fullmatch(channel):
            yield Problem(
                "messages.channels",
                channel,
                "is no full name of a notification channel",
                "Use projects/PROJECT/notificationChannels/NUMBER, as `gcloud beta monitoring "
                "channels list` shows it",
            )
    names = [*messages.channels, *messages.emails, *([topic] if topic else [])]
    if len(names) > _MOST_CHANNELS:
        yield Problem(
            "messages",
            names,
            f"are too many: an alert has at most {_MOST_CHANNELS} channels",
            "Use the address of a group",
        )
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
            "reaches nobody",
            "Set messages.emails, messages.pubsubTopic or messages.channels, or remove it",
        )
    estimate = context.cost_of(settings)
    if unknown := [line for line in estimate.lines if line.configured is None]:
        yield Problem(
            "messages.costDollars",
            messages.cost_dollars,
            f"can't be told: the catalog has no price of {unknown[0].what} in {settings.region}",
            "Remove it, and set a budget instead",
        )
