"""Notification channels: to whom an alert goes. Nothing is sent to them here."""

from __future__ import annotations

import re

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record
from localcloud.services.paging import page

API = Api("monitoring", ("v3",))
CHANNEL = "notification-channel"
"""The store's kind of channels, by `projects/P/notificationChannels/NUMBER`."""
_CHANNELS = Collection(API, "projects.notificationChannels", "monitoring.notificationChannels")
_LABEL = {"email": "email_address", "pubsub": "topic"}
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_FIELDS = ("type", "displayName", "description", "labels", "userLabels", "enabled")


@_CHANNELS.method("create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a channel."""
    name = f"projects/{call.project}/notificationChannels/{cloud.operations.number()}"
    return _put(cloud, {"name": name, "enabled": True, **_sent(call)})


@_CHANNELS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one channel."""
    return _load(cloud, call)


@_CHANNELS.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the channels of a project."""
    found = cloud.store.items(CHANNEL, f"projects/{call.project}/")
    return page(call, "notificationChannels", [record for _, record in found])


@_CHANNELS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change a channel, but not its type."""
    record, sent = _load(cloud, call), _sent(call)
    if sent.get("type", record["type"]) != record["type"]:
        raise invalid("Field type is immutable.")
    mask = [field for field in call.arg("updateMask").split(",") if field]
    changed = {field: sent[field] for field in mask or sent if field in sent}
    return _put(cloud, record | changed)


@_CHANNELS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete a channel."""
    cloud.store.delete(CHANNEL, _load(cloud, call)["name"])
    return {}


def _load(cloud: Cloud, call: Call) -> Record:
    number = call.params["notificationChannelsId"]
    name = f"projects/{call.project}/notificationChannels/{number}"
    missing = ApiError(404, f"Cannot find channel with channel_id={number}.")
    return cloud.store.load(CHANNEL, name, missing)


def _sent(call: Call) -> Json:
    return {field: call.body[field] for field in _FIELDS if field in call.body}


def _put(cloud: Cloud, record: Record) -> Json:
    label = _LABEL.get(record.get("type", ""))
    if label is None:
        raise ApiError(
            501, f"the local cloud has channels of the types {', '.join(_LABEL)}, no others"
        )
    address = record.get("labels", {}).get(label, "")
    if not address or (label == "email_address" and not _EMAIL.fullmatch(address)):
        raise invalid(f"Field labels[{label}] has an invalid value: {address!r}.")
    cloud.store.put(CHANNEL, record["name"], record)
    return record
