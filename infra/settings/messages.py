"""Settings of the messages that the machine sends."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section, Text


class MessagesSettings(Section):
    """Whom the machine tells how jobs and trainings end, and what has become of the TPU."""

    webhook: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,255}$")
    """Id of a secret of the project's Secret Manager that holds the URL of a webhook (Slack's or
    Discord's form), for example tpu-webhook. None if it is not set.
    """
    emails: tuple[Text, ...] = ()
    """Addresses to which Cloud Monitoring sends each message, at most 16."""
    pubsub_topic: Text | None = None
    """Name of a Pub/Sub topic to make, to which the machine publishes each message, for example
    tpu-messages. None if it is not set.
    """
    cost_dollars: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """US dollars (1 to 1000000000): a message says when the TPU and the VM have cost so much in a
    month, by the catalog's prices. It stops nothing. No message if it is not set.
    """

    @property
    def any(self) -> bool:
        """Whether anybody is told."""
        return self.webhook is not None or bool(self.emails) or self.pubsub_topic is not None
