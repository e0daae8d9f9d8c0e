"""Settings of the messages that the machine sends."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section, Text


class MessagesSettings(Section):
    """Whom Cloud Monitoring tells how jobs and trainings end, and what has become of the TPU."""

    emails: tuple[Text, ...] = ()
    """Addresses to which Cloud Monitoring sends each message."""
    pubsub_topic: Text | None = None
    """Name of a Pub/Sub topic to make, to which Cloud Monitoring publishes each message, for
    example tpu-messages. None if it is not set.
    """
    channels: tuple[Text, ...] = ()
    """Existing notification channels of any kind, such as Slack or a webhook:
    projects/PROJECT/notificationChannels/NUMBER.
    """
    cost_dollars: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """US dollars (1 to 1000000000): a message says when the TPU and the VM have cost so much in a
    month, by the catalog's prices. It stops nothing. No message if it is not set.
    """

    @property
    def any(self) -> bool:
        """Whether there is anyone to tell."""
        return bool(self.emails or self.channels) or self.pubsub_topic is not None
