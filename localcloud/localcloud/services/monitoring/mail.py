"""The mails that policies on log entries send. They are kept, and go nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from localcloud.core.call import Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.services.logging import filters
from localcloud.services.logging.entries import written
from localcloud.services.monitoring.channels import CHANNEL, POLICY

MAIL = "mail"
"""The store's kind of mails, by the channel's name and their number."""
_EXTRACT = re.compile(r"EXTRACT\(([\w.]+)\)")
_VARIABLE = re.compile(r"\$\{log\.extracted_label\.(\w+)\}")


@written
def send(cloud: Cloud, project: str, entry: Json) -> None:
    """Send what policies of a project say of a log entry.

    "Each combination of extracted values is treated as a separate rule for the purposes of
    triggering notifications" (monitoring:v3, LogMatch.labelExtractors), and has a rate of its own.
    """
    for _, policy in cloud.store.items(POLICY, f"projects/{project}/"):
        matched = policy["conditions"][0]["conditionMatchedLog"]
        holds = all(said.holds(entry) for said in filters.parse(matched["filter"]))
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
    if record.get("type") != "email" or _is_too_soon(cloud, policy, channel, labels):
        return
    said = policy.get("documentation", {})
    mail = {
        "to": record["labels"]["email_address"],
        "subject": _filled(said.get("subject") or policy.get("displayName", ""), labels),
        "text": _filled(said.get("content", ""), labels),
        "sent": rfc3339(cloud.clock.now()),
        "policy": policy["name"],
        "labels": labels,
        "at": cloud.clock.now(),
    }
    cloud.store.put(MAIL, f"{channel}/{cloud.operations.number()}", mail)


def _is_too_soon(cloud: Cloud, policy: Json, channel: str, labels: dict[str, str]) -> bool:
    period = float(policy["alertStrategy"]["notificationRateLimit"]["period"].removesuffix("s"))
    oldest = cloud.clock.now() - period
    return any(
        mail["policy"] == policy["name"] and mail["labels"] == labels and mail["at"] > oldest
        for mail in _mails(cloud, channel)
    )


def _mails(cloud: Cloud, channel: str) -> Iterator[Json]:
    return (mail for _, mail in cloud.store.items(MAIL, f"{channel}/"))


def _value(extractor: str, entry: Json) -> str:
    """Return a field of an entry, as EXTRACT(FIELD) names it; nothing if it has none."""
    named = _EXTRACT.fullmatch(extractor)
    found: object = entry
    for part in named[1].split(".") if named else ():
        found = found.get(part) if isinstance(found, dict) else None
    return str(found) if named and found is not None else ""


def _filled(text: str, labels: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda name: labels.get(name[1], ""), text)
