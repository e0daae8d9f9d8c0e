"""The Pub/Sub API: topics and their policies. Messages are accepted but have no receivers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from localcloud.core.body import plain
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection
from localcloud.services import iam_policy
from localcloud.services.kind import Kind, project_name, serve

API = Api("pubsub", ("v1",))
TOPIC = "pubsub-topic"
"""The store's kind of topics, by `projects/P/topics/T`."""
_ID = re.compile(r"(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)
# https://cloud.google.com/pubsub/quotas
_MOST_MESSAGES = 1000
_FIELDS = ("labels", "messageRetentionDuration", "messageStoragePolicy")


def _resources(cloud: Cloud, call: Call) -> Sequence[str]:
    return (_KIND.name(call), project_name(call))


_TOPICS = Collection(API, "projects.topics", "pubsub.topics", _resources)
_KIND = Kind(
    collection=_TOPICS,
    store=TOPIC,
    items="topics",
    missing=lambda name: f"Resource not found (resource={name.rpartition('/')[2]}).",
)
serve(_KIND)
iam_policy.serve(_TOPICS, _KIND.existing)


@API.method("projects.topics.create", permission="pubsub.topics.create")
def _create(cloud: Cloud, call: Call) -> Json:
    name = _KIND.name(call)
    if not _ID.fullmatch(call.params["topicsId"]):
        raise invalid(f"Invalid resource name given (name={name}).")
    if others := sorted(set(call.body) - {*_FIELDS, "name"}):
        raise ApiError(501, f"the local cloud does not implement topics' {', '.join(others)}")
    record = {"name": name} | call.sent(_FIELDS)
    short = call.params["topicsId"]
    taken = ApiError(409, f"Resource already exists in the project (resource={short}).")
    cloud.store.add(TOPIC, name, record, taken)
    return record


@_TOPICS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; a field that is not sent is removed."""
    named = call.body.get("updateMask") or call.arg("updateMask")
    mask = [field for field in named.split(",") if field]
    if not mask or not set(_FIELDS).issuperset(mask):
        raise invalid(f"update_mask {mask} must name some of {', '.join(_FIELDS)}.")
    # Clients send the whole topic with its name.
    sent = plain(call.body.get("topic", {}))
    with cloud.store.locked():
        record = _KIND.load(cloud, call)
        for field in mask:
            record.pop(field, None)
            if sent.get(field):
                record[field] = sent[field]
        cloud.store.put(TOPIC, record["name"], record)
    return record


@_TOPICS.method("publish")
def publish(cloud: Cloud, call: Call) -> Json:
    """Accept messages. Without a subscription no one receives them, here as on Google."""
    _KIND.load(cloud, call)
    messages = call.body.get("messages", [])
    if not 0 < len(messages) <= _MOST_MESSAGES:
        raise invalid(f"The value for messages must be from 1 to {_MOST_MESSAGES}.")
    if not all(message.get("data") or message.get("attributes") for message in messages):
        raise invalid("One or more messages in the publish request is empty.")
    return {"messageIds": [str(cloud.operations.number()) for _ in messages]}
