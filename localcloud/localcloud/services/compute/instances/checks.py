"""Checks of what callers send about an instance: labels, metadata, tags, scheduling."""

from __future__ import annotations

import re

from localcloud.core.call import Json
from localcloud.core.errors import ApiError, invalid
from localcloud.services.compute.fingerprints import fingerprint

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_METADATA_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_MOST = 64
_LONGEST_VALUE = 256 * 1024
_LONGEST_METADATA = 512 * 1024


def labels(sent: dict[str, str]) -> dict[str, str]:
    """Return labels that Google takes."""
    if len(sent) > _MOST:
        raise invalid(f"Invalid value for field 'labels': more than {_MOST} labels.")
    for key, value in sent.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise invalid(
                f"Invalid value for field 'labels': '{key}={value}'. Keys are 1-63 lower-case "
                "letters, digits, '_' and '-', beginning with a letter; values are at most 63 of "
                "them."
            )
    return sent


def metadata(sent: Json) -> Json:
    """Return instance metadata as it is stored, with its fingerprint."""
    items = sent.get("items", [])
    keys = [item.get("key", "") for item in items]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise invalid(
            f"Invalid value for field 'resource.metadata': ''. Duplicate metadata keys: "
            f"{', '.join(twice)}."
        )
    for item in items:
        if not _METADATA_KEY.fullmatch(item.get("key", "")):
            raise invalid(
                f"Invalid value for field 'metadata.items[].key': '{item.get('key', '')}'. Must be "
                f"a match of regex '{_METADATA_KEY.pattern}'"
            )
        if len(item.get("value", "").encode()) > _LONGEST_VALUE:
            raise invalid(
                f"Value for field 'metadata.items[{item['key']}].value' is too large: maximum size "
                f"{_LONGEST_VALUE} character(s)."
            )
    if sum(len(i["key"]) + len(i.get("value", "").encode()) for i in items) > _LONGEST_METADATA:
        raise invalid(f"The metadata is larger than {_LONGEST_METADATA} bytes in all.")
    stored: Json = {"kind": "compute#metadata"}
    if items:
        stored["items"] = items
    return stored | {"fingerprint": fingerprint(items)}


def tags(sent: Json) -> Json:
    """Return network tags as they are stored, with their fingerprint."""
    items = sent.get("items", [])
    if len(items) > _MOST or len(set(items)) < len(items):
        raise invalid(f"Invalid value for field 'tags': at most {_MOST} tags, each once.")
    for tag in items:
        if not _TAG.fullmatch(tag):
            raise invalid(
                f"Invalid value for field 'tags.items[]': '{tag}'. Must be a match of regex "
                f"'{_TAG.pattern}'"
            )
    stored: Json = {"items": sorted(items)} if items else {}
    return stored | {"fingerprint": fingerprint(sorted(items))}


def scheduling(sent: Json) -> Json:
    """Return completed scheduling options: preemptible machines neither restart nor migrate."""
    spot = sent.get("provisioningModel") == "SPOT"
    short = spot or sent.get("preemptible", False)
    full = {
        "onHostMaintenance": "TERMINATE" if short else "MIGRATE",
        "automaticRestart": not short,
        "provisioningModel": "STANDARD",
        **sent,
        "preemptible": short,
    }
    if short and full["automaticRestart"]:
        raise invalid("Scheduling must have preemptible be false when AutomaticRestart is true.")
    if short and full["onHostMaintenance"] != "TERMINATE":
        raise invalid(
            "Invalid value for field 'scheduling.onHostMaintenance': "
            f"'{full['onHostMaintenance']}'. Preemptible and spot instances must use TERMINATE."
        )
    if "instanceTerminationAction" in full and not spot and "maxRunDuration" not in full:
        raise invalid(
            "Invalid value for field 'scheduling.instanceTerminationAction': "
            f"'{full['instanceTerminationAction']}'. It needs the provisioning model SPOT or a "
            "maxRunDuration."
        )
    if spot:
        full.setdefault("instanceTerminationAction", "STOP")
    return full


def shielded(sent: Json) -> Json:
    """Return shielded VM options, completed."""
    full = {"enableSecureBoot": False, "enableVtpm": True, "enableIntegrityMonitoring": True} | sent
    if full["enableIntegrityMonitoring"] and not full["enableVtpm"]:
        raise ApiError(
            400,
            "Invalid value for field 'resource.shieldedInstanceConfig': integrity monitoring needs "
            "the vTPM.",
        )
    return full
