"""Notification channels: to whom an alert goes. What is sent to them goes nowhere."""

from __future__ import annotations

import re

from localcloud.core.call import Call, Json, page
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record

API = Api("monitoring", ("v3",))
CHANNEL = "notification-channel"
"""The store's kind of channels, by `projects/P/notificationChannels/NUMBER`."""
POLICY = "alert-policy"
"""The store's kind of alerting policies, by `projects/P/alertPolicies/NUMBER`."""
_CHANNELS = Collection(API, "projects.notificationChannels", "monitoring.notificationChannels")
_LABEL = {"email": "email_address", "pubsub": "topic"}
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_FIELDS = ("type", "displayName", "description", "labels", "userLabels", "enabled")


@_CHANNELS.method("create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a channel."""
    name = f"projects/{call.project}/notificationChannels/{cloud.operations.number()}"
    record = {"name": name, "enabled": True, **call.sent(_FIELDS)}
    return _put(cloud, record | {"creationRecord": _now(cloud), "mutationRecords": [_now(cloud)]})


@_CHANNELS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one channel."""
    return _load(cloud, call)


@_CHANNELS.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the channels of a project."""
    found = cloud.store.items(CHANNEL, f"projects/{call.project}/")
    shown = page(call, "notificationChannels", [record for _, record in found])
    return shown | {"totalSize": len(found)}


@_CHANNELS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change a channel, but not its type."""
    record, sent = _load(cloud, call), call.sent(_FIELDS)
    if sent.get("type", record["type"]) != record["type"]:
        raise invalid("Field type is immutable.")
    mask = call.mask()
    changed = {field: sent[field] for field in mask or sent if field in sent}
    changed["mutationRecords"] = [_now(cloud), *record["mutationRecords"]]
    return _put(cloud, record | changed)


@_CHANNELS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete a channel that no policy tells; with `force` take it out of those that do."""
    name = _load(cloud, call)["name"]
    with cloud.store.locked():
        for key, policy in cloud.store.items(POLICY, f"projects/{call.project}/"):
            if name in (told := policy.get("notificationChannels", [])):
                if call.arg("force") != "true":
                    raise invalid(f"Channel {name} is used by the alerting policy {key}.")
                policy["notificationChannels"] = [other for other in told if other != name]
                cloud.store.put(POLICY, key, policy)
        cloud.store.delete(CHANNEL, name)
    return {}


def _now(cloud: Cloud) -> Json:
    return {"mutateTime": rfc3339(cloud.clock.now())}


def _load(cloud: Cloud, call: Call) -> Record:
    number = call.params["notificationChannelsId"]
    name = f"projects/{call.project}/notificationChannels/{number}"
    missing = ApiError(404, f"Cannot find channel with channel_id={number}.")
    return cloud.store.load(CHANNEL, name, missing)


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
