"""The Pub/Sub API: topics and their policies. There are no subscriptions, and no messages."""

from __future__ import annotations

from localcloud.services.pubsub import topics
from localcloud.services.pubsub.api import API

__all__ = ["API", "topics"]
