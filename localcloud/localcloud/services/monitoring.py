"""The Cloud Monitoring API: channels, policies on log entries, their mails, and no time series."""

import re

from localcloud.core import Api, ApiError, Call, Cloud, Collection, Json, Record, invalid, rfc3339
from localcloud.services import kind, logging

API = Api("monitoring", ("v3",))
CHANNEL = "notification-channel"
"""The store's kind of channels, by `projects/P/notificationChannels/NUMBER`."""
ALERT_POLICY = "alert-policy"
"""The store's kind of alerting policies, by `projects/P/alertPolicies/NUMBER`."""
_CHANNELS = Collection(API, "projects.notificationChannels", "monitoring.notificationChannels")
# By type of channel: the label that says where it sends. The others (Slack, webhook, …) have
# secrets or a sign-in, which nothing here could check.
_LABEL = {"email": "email_address", "pubsub": "topic"}
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_CHANNEL_FIELDS = ("type", "displayName", "description", "labels", "userLabels", "enabled")


def _leave_policies(cloud: Cloud, call: Call, name: str, record: Record) -> None:
    """Refuse to delete a channel that a policy uses; with `force` take it out of those that do."""
    for key, policy in cloud.store.items(ALERT_POLICY, f"projects/{call.project}/"):
        if name in (used := policy.get("notificationChannels", [])):
            if not call.flag("force"):
                raise invalid(f"Channel {name} is used by the alerting policy {key}.")
            policy["notificationChannels"] = [other for other in used if other != name]
            cloud.store.put(ALERT_POLICY, key, policy)


_CHANNEL = kind.Kind(
    collection=_CHANNELS,
    store=CHANNEL,
    items="notificationChannels",
    missing=lambda name: f"Cannot find channel with channel_id={name.rpartition('/')[2]}.",
    remove=_leave_policies,
    counted=True,
)
kind.serve(_CHANNEL)


@_CHANNELS.method("create")
def _create_channel(cloud: Cloud, call: Call) -> Json:
    name = f"projects/{call.project}/notificationChannels/{cloud.operations.number()}"
    record = {"name": name, "enabled": True, **call.sent(_CHANNEL_FIELDS)}
    now = _now(cloud)
    return _put_channel(cloud, record | {"creationRecord": now, "mutationRecords": [now]})


@_CHANNELS.method("patch", verb="update")
def patch_channel(cloud: Cloud, call: Call) -> Json:
    """Change a channel, but not its type.

    A mask is optional; without it what is sent counts.
    """
    record, sent = _CHANNEL.load(cloud, call), call.sent(_CHANNEL_FIELDS)
    if sent.get("type", record["type"]) != record["type"]:
        raise invalid("Field type is immutable.")
    mask = call.mask()
    changed = {field: sent[field] for field in mask or sent if field in sent}
    changed["mutationRecords"] = [_now(cloud), *record["mutationRecords"]]
    return _put_channel(cloud, record | changed)


def _now(cloud: Cloud) -> Json:
    return {"mutateTime": rfc3339(cloud.clock.now())}


# Checked after every change: a patch may remove the label that the type needs.
def _put_channel(cloud: Cloud, record: Record) -> Json:
    label = _LABEL.get(record.get("type", ""))
    if label is None:
        known = ", ".join(_LABEL)
        raise ApiError(501, f"the local cloud has channels of the types {known}, no others")
    address = record.get("labels", {}).get(label, "")
    if not address or (label == "email_address" and not _EMAIL.fullmatch(address)):
        raise invalid(f"Field labels[{label}] has an invalid value: {address!r}.")
    cloud.store.put(CHANNEL, record["name"], record)
    return record


# Alerting policies on log entries; those on metrics are not served.

_POLICIES = Collection(API, "projects.alertPolicies", "monitoring.alertPolicies")
_ALERT_POLICY_FIELDS = (
    *("displayName", "documentation", "userLabels", "conditions", "combiner", "enabled"),
    *("notificationChannels", "alertStrategy", "severity"),
)
_COMBINERS = ("AND", "OR", "AND_WITH_MATCHING_RESOURCE")


_POLICY = kind.Kind(
    collection=_POLICIES,
    store=ALERT_POLICY,
    items="alertPolicies",
    missing=lambda name: f"Cannot find alert policy {name.rpartition('/')[2]}.",
    counted=True,
)
kind.serve(_POLICY)


@_POLICIES.method("create")
def _create_alert_policy(cloud: Cloud, call: Call) -> Json:
    name = f"projects/{call.project}/alertPolicies/{cloud.operations.number()}"
    record = {"name": name, "creationRecord": _mutation(cloud, call), "enabled": True}
    return _put_alert_policy(cloud, record | call.sent(_ALERT_POLICY_FIELDS), call)


@_POLICIES.method("patch", verb="update")
def patch_alert_policy(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names, or everything; a field that is not sent is removed.

    Without a mask the request is the whole policy, so that a label or channel left out is gone.
    """
    record, sent = _POLICY.load(cloud, call), call.sent(_ALERT_POLICY_FIELDS)
    mask = call.mask() or list(_ALERT_POLICY_FIELDS)
    if unknown := [field for field in mask if field not in _ALERT_POLICY_FIELDS]:
        raise ApiError(501, f"the local cloud does not change policies' {', '.join(unknown)}")
    kept = {field: value for field, value in record.items() if field not in mask}
    changed = {field: sent[field] for field in mask if field in sent}
    return _put_alert_policy(cloud, kept | changed, call)


def _mutation(cloud: Cloud, call: Call) -> Json:
    return {"mutateTime": rfc3339(cloud.clock.now()), "mutatedBy": call.principal.email}


def _put_alert_policy(cloud: Cloud, record: Record, call: Call) -> Json:
    conditions = record.get("conditions") or []
    if not conditions or record.get("combiner") not in _COMBINERS:
        raise invalid("Field alert_policy must have a combiner and at least one condition.")
    for number, condition in enumerate(conditions):
        if (matched := condition.get("conditionMatchedLog")) is None:
            on = "the local cloud's policies are on log entries (conditionMatchedLog)"
            raise ApiError(501, on)
        if not logging.parse(matched.get("filter", "")):
            raise invalid("Field condition_matched_log.filter is required.")
        condition.setdefault("name", f"{record['name']}/conditions/{number}")
    strategy = record.get("alertStrategy", {})
    if len(conditions) > 1 or not strategy.get("notificationRateLimit", {}).get("period"):
        # https://docs.cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies
        raise invalid(
            "A policy with a log match condition has one condition, and needs "
            "alert_strategy.notification_rate_limit."
        )
    for channel in record.get("notificationChannels", []):
        if cloud.store.get(CHANNEL, channel) is None:
            raise invalid(f"Field alert_policy.notification_channels: no channel {channel}.")
    record["mutationRecord"] = _mutation(cloud, call)
    cloud.store.put(ALERT_POLICY, record["name"], record)
    return record


# Time series: nothing here is measured, and a TPU without chips has no figures.
# "The filter must specify a single metric type"; an interval has an end (monitoring:v3).

_TYPE = re.compile(r'\bmetric\.type\s*=\s*"[^"]+"')


@API.method("projects.timeSeries.list", permission="monitoring.timeSeries.list")
def list_time_series(cloud: Cloud, call: Call) -> Json:
    """Return none, as Google does where no resource has written a metric."""
    if len(_TYPE.findall(call.arg("filter"))) != 1:
        raise invalid("Field filter had an invalid value: it must specify a single metric type.")
    if not call.arg("interval.endTime"):
        raise invalid("Field interval.endTime had an invalid value: it is required.")
    return {}


# The mails that alerting policies send: kept, but not delivered.

MAIL = "mail"
"""The store's kind of mails, by the channel's name and their number."""
_EXTRACT = re.compile(r"EXTRACT\(([\w.]+)\)")
_VARIABLE = re.compile(r"\$\{log\.extracted_label\.(\w+)\}")


@logging.written
def send_mails(cloud: Cloud, project: str, entry: Json) -> None:
    """Send what policies of a project say of a log entry.

    "Each combination of extracted values is treated as a separate rule for the purposes of
    triggering notifications" (monitoring:v3, LogMatch.labelExtractors), and has a rate of its own.
    """
    for _, policy in cloud.store.items(ALERT_POLICY, f"projects/{project}/"):
        matched = policy["conditions"][0]["conditionMatchedLog"]
        holds = all(one.holds(entry) for one in logging.parse(matched["filter"]))
        if not (policy["enabled"] and holds):
            continue
        labels = {
            label: _value(extractor, entry)
            for label, extractor in matched.get("labelExtractors", {}).items()
        }
        for channel in policy.get("notificationChannels", []):
            _send(cloud, policy, channel, labels)


def _send(cloud: Cloud, policy: Json, channel: str, labels: dict[str, str]) -> None:
    record = cloud.store.get(CHANNEL, channel) or {}
    # Topics get no messages: none of them has a subscription.
    if record.get("type") != "email" or _is_too_soon(cloud, policy, channel, labels):
        return
    documentation = policy.get("documentation", {})
    subject = documentation.get("subject") or policy.get("displayName", "")
    mail = {
        "to": record["labels"]["email_address"],
        "subject": _filled_in(subject, labels),
        "text": _filled_in(documentation.get("content", ""), labels),
        "sent": rfc3339(cloud.clock.now()),
        "policy": policy["name"],
        "labels": labels,
        # For the rate limit, in seconds; `sent` is for people.
        "at": cloud.clock.now(),
    }
    cloud.store.put(MAIL, f"{channel}/{cloud.operations.number()}", mail)


def _is_too_soon(cloud: Cloud, policy: Json, channel: str, labels: dict[str, str]) -> bool:
    period = float(policy["alertStrategy"]["notificationRateLimit"]["period"].removesuffix("s"))
    oldest = cloud.clock.now() - period
    return any(
        mail["policy"] == policy["name"] and mail["labels"] == labels and mail["at"] > oldest
        for _, mail in cloud.store.items(MAIL, f"{channel}/")
    )


def _value(extractor: str, entry: Json) -> str:
    """Return a field of an entry, as EXTRACT(FIELD) names it; nothing if it has none.

    Google also has REGEXP_EXTRACT, which no policy of a stack uses.
    """
    named = _EXTRACT.fullmatch(extractor)
    found: object = entry
    for part in named[1].split(".") if named else ():
        found = found.get(part) if isinstance(found, dict) else None
    return str(found) if named and found is not None else ""


def _filled_in(text: str, labels: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda name: labels.get(name[1], ""), text)
