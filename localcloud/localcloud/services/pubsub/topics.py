"""Topics."""

from __future__ import annotations

import re

from localcloud.core.access import POLICY
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services import policies
from localcloud.services.paging import page
from localcloud.services.pubsub.api import API, TOPIC, TOPICS, topic_name

_ID = re.compile(r"(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)
_FIELDS = ("labels", "messageRetentionDuration", "messageStoragePolicy")


@API.method("projects.topics.create", permission="pubsub.topics.create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a topic."""
    name = topic_name(call)
    if not _ID.fullmatch(call.params["topicsId"]):
        raise invalid(f"Invalid resource name given (name={name}).")
    if others := sorted(set(call.body) - {*_FIELDS, "name"}):
        raise ApiError(501, f"the local cloud does not implement topics' {', '.join(others)}")
    record = {"name": name} | {field: call.body[field] for field in _FIELDS if field in call.body}
    with cloud.store.locked():
        if cloud.store.get(TOPIC, name) is not None:
            raise ApiError(409, f"Resource already exists in the project (resource={_last(name)}).")
        cloud.store.put(TOPIC, name, record)
    return record


@TOPICS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one topic."""
    return _load(cloud, call)


@API.method("projects.topics.list", permission="pubsub.topics.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the topics of a project."""
    found = cloud.store.items(TOPIC, f"projects/{call.project}/")
    return page(call, "topics", [record for _, record in found])


@TOPICS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; a field that is not sent is taken away."""
    named = call.body.get("updateMask") or call.arg("updateMask")
    mask = [field for field in named.split(",") if field]
    if not mask or not set(_FIELDS).issuperset(mask):
        raise invalid(f"update_mask {mask} must name some of {', '.join(_FIELDS)}.")
    sent = call.body.get("topic", {})
    with cloud.store.locked():
        record = _load(cloud, call)
        for field in mask:
            record.pop(field, None)
            if sent.get(field):
                record[field] = sent[field]
        cloud.store.put(TOPIC, record["name"], record)
    return record


@TOPICS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete a topic with its policy."""
    name = _load(cloud, call)["name"]
    cloud.store.delete(TOPIC, name)
    cloud.store.delete(POLICY, name)
    return {}


policies.serve(TOPICS, lambda cloud, call: str(_load(cloud, call)["name"]))


def _load(cloud: Cloud, call: Call) -> Record:
    record = cloud.store.get(TOPIC, topic_name(call))
    if record is None:
        raise ApiError(404, f"Resource not found (resource={_last(topic_name(call))}).")
    return record


def _last(name: str) -> str:
    return name.rpartition("/")[2]
