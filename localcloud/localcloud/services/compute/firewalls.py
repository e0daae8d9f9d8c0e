"""Firewall rules: kept and checked here; `services/reach.py` judges packets by them."""

from __future__ import annotations

import re
from ipaddress import ip_network

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.services.compute.api import url_of
from localcloud.services.compute.networks import require_own_network
from localcloud.services.compute.resources import Kind, serve

_HIGHEST_PRIORITY = 65535
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


def _check(record: Json) -> None:
    _check_filters(record)
    if bool(record.get("allowed")) == bool(record.get("denied")):
        raise invalid("Exactly one of 'allowed' and 'denied' must be given with rules in it.")
    if not 0 <= record["priority"] <= _HIGHEST_PRIORITY:
        raise invalid(
            f"Invalid value for field 'resource.priority': '{record['priority']}'. Must be "
            f"between 0 and {_HIGHEST_PRIORITY}."
        )
    for field in ("sourceRanges", "destinationRanges"):
        for text in record.get(field, []):
            try:
                ip_network(text)
            except ValueError as error:
                raise invalid(
                    f"Invalid value for field 'resource.{field}': '{text}'. {error}."
                ) from None


def _check_filters(record: Json) -> None:
    """Refuse filters that exclude each other, as the API's reference has it."""
    tags = [field for field in ("sourceTags", "targetTags") if record.get(field)]
    accounts = [f for f in ("sourceServiceAccounts", "targetServiceAccounts") if record.get(f)]
    if tags and accounts:
        raise invalid(f"{tags[0]} and service accounts ({accounts[0]}) exclude each other.")
    for field in accounts:
        for email in record[field]:
            if not _EMAIL.fullmatch(email):
                raise invalid(f"Invalid value for field 'resource.{field}': '{email}'.")
    if record["direction"] == "EGRESS":
        for field in ("sourceTags", "sourceServiceAccounts"):
            if record.get(field):
                raise invalid(f"Invalid value for field 'resource.{field}': EGRESS has none.")


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    record["network"] = url_of(require_own_network(cloud, call.project, record.get("network", "")))
    ingress = record["direction"] == "INGRESS"
    if ingress and not any(
        record.get(field) for field in ("sourceRanges", "sourceTags", "sourceServiceAccounts")
    ):
        record["sourceRanges"] = ["0.0.0.0/0"]
    if not ingress and not record.get("destinationRanges"):
        record["destinationRanges"] = ["0.0.0.0/0"]
    _check(record)


def _change(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    after["network"] = url_of(require_own_network(cloud, call.project, after["network"]))
    if before["network"] != after["network"] or before["direction"] != after["direction"]:
        raise invalid("The network and the direction of a firewall rule cannot be changed.")
    _check(after)


serve(
    Kind(
        collection="firewalls",
        parameter="firewall",
        scope="global",
        defaults={
            "direction": "INGRESS",
            "priority": 1000,
            "disabled": False,
            "logConfig": {"enable": False},
        },
        prepare=_prepare,
        change=_change,
        also=("compute.networks.updatePolicy",),
        latency="network",
    )
)
