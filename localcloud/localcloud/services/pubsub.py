"""The Pub/Sub API: topics and their policies.

There is no publishing: budgets and alerts, which would, have nothing to say where nothing costs
money.
"""

import re
from collections.abc import Sequence

from localcloud.core import Api, ApiError, Call, Cloud, Collection, Json, invalid
from localcloud.core.body import plain
from localcloud.services import iam_policy, kind

API = Api("pubsub", ("v1",))
TOPIC = "pubsub-topic"
"""The store's kind of topics, by `projects/P/topics/T`."""
# The rules of the discovery document (`Topic.name`).
_ID = re.compile(r"(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)
_FIELDS = ("labels", "messageRetentionDuration", "messageStoragePolicy")


def _resources(cloud: Cloud, call: Call) -> Sequence[str]:
    return (_KIND.name(call), kind.project_name(call))


_TOPICS = Collection(API, "projects.topics", "pubsub.topics", _resources)
_KIND = kind.Kind(
    collection=_TOPICS,
    store=TOPIC,
    items="topics",
    # Google names the topic by its ID here, not by its full name.
    missing=lambda name: f"Resource not found (resource={name.rpartition('/')[2]}).",
)
kind.serve(_KIND)
iam_policy.serve(_TOPICS, _KIND.existing)


# Asked of the project, as for every creation: the topic has no policy yet.
@API.method("projects.topics.create", permission="pubsub.topics.create")
def _create(cloud: Cloud, call: Call) -> Json:
    name, short = _KIND.name(call), call.params["topicsId"]
    if not _ID.fullmatch(short):
        raise invalid(f"Invalid resource name given (name={name}).")
    record = {"name": name} | kind.only(call, "topics", _FIELDS)
    taken = ApiError(409, f"Resource already exists in the project (resource={short}).")
    cloud.store.add(TOPIC, name, record, taken)
    return record


@_TOPICS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; a field that is not sent is removed."""
    # The discovery document has the mask in the body (`UpdateTopicRequest`).
    named = call.body.get("updateMask") or call.arg("updateMask")
    mask = kind.known_mask([field for field in named.split(",") if field], _FIELDS, "update_mask")
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
