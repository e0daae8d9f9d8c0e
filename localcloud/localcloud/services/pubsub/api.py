"""The Pub/Sub API's registration, and whose policies count for a topic."""

from __future__ import annotations

from collections.abc import Sequence

from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.registry import Api, Collection

API = Api("pubsub", ("v1",))
TOPIC = "pubsub-topic"
"""The store's kind of topics, by `projects/P/topics/T`."""


def topic_name(call: Call) -> str:
    """Return the full name of the topic in the path."""
    return f"projects/{call.project}/topics/{call.params['topicsId']}"


def resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return the topic's own policy and its project's."""
    return (topic_name(call), f"projects/{call.project}")


TOPICS = Collection(API, "projects.topics", "pubsub.topics", resources)
