"""Lifecycle rules: which are valid, and which versions they match."""

from __future__ import annotations

from datetime import date, datetime, timezone

from localcloud.core.call import Json
from localcloud.core.clock import seconds_of
from localcloud.services.storage.object_fields import STORAGE_CLASSES
from localcloud.services.storage.records import Version

DAY = 86400.0
_ACTIONS = ("Delete", "SetStorageClass", "AbortIncompleteMultipartUpload")
_COUNTS = ("age", "daysSinceCustomTime", "daysSinceNoncurrentTime", "numNewerVersions")
_DATES = ("createdBefore", "customTimeBefore", "noncurrentTimeBefore")
_UPLOAD_CONDITIONS = {"age", "matchesPrefix", "matchesSuffix"}


def problems(lifecycle: Json) -> list[str]:
    """Return what Google would refuse about a bucket's `lifecycle`, one sentence each."""
    rules = lifecycle.get("rule") or []
    found = [] if len(rules) <= 100 else [f"A bucket has at most 100 rules, not {len(rules)}."]
    for index, rule in enumerate(rules):
        for problem in _rule_problems(rule):
            found.append(f"Invalid lifecycle.rule[{index}]: {problem}.")
    return found


def matches(condition: Json, version: Version, newer: int, now: float) -> bool:
    """Return whether all of a rule's conditions hold of a version.

    Args:
        condition: of a valid rule.
        version: live or noncurrent.
        newer: how many newer versions of the same object there are.
        now: seconds since the epoch.
    """
    return all(_holds(name, value, version, newer, now) for name, value in condition.items())


def name_matches(condition: Json, name: str) -> bool:
    """Return whether the conditions on an object's name hold."""
    prefixes, suffixes = condition.get("matchesPrefix"), condition.get("matchesSuffix")
    return (not prefixes or name.startswith(tuple(prefixes))) and (
        not suffixes or name.endswith(tuple(suffixes))
    )


def _rule_problems(rule: Json) -> list[str]:
    action, condition = rule.get("action") or {}, rule.get("condition") or {}
    kind, found = action.get("type"), []
    if kind not in _ACTIONS:
        found.append(f"action type '{kind}' is none of {', '.join(_ACTIONS)}")
    if kind == "SetStorageClass" and action.get("storageClass") not in STORAGE_CLASSES:
        found.append(f"storage class '{action.get('storageClass')}' does not exist")
    if kind != "SetStorageClass" and action.get("storageClass"):
        found.append(f"action {kind} takes no storageClass")
    if not {name for name, value in condition.items() if value is not None}:
        found.append("it has no condition")
    if kind == "AbortIncompleteMultipartUpload" and set(condition) - _UPLOAD_CONDITIONS:
        found.append(f"{kind} takes only the conditions {', '.join(sorted(_UPLOAD_CONDITIONS))}")
    if condition.get("matchesPattern"):
        found.append("matchesPattern is not available to this project")
    for name in _COUNTS:
        if (condition.get(name) or 0) < 0:
            found.append(f"{name} must not be negative")
    for name in _DATES:
        if condition.get(name) and _date(condition[name]) is None:
            found.append(f"{name} '{condition[name]}' is no date such as 2026-01-31")
    for name in condition.get("matchesStorageClass") or []:
        if name not in STORAGE_CLASSES:
            found.append(f"storage class '{name}' does not exist")
    return found


def _holds(name: str, value: object, version: Version, newer: int, now: float) -> bool:
    if value is None or value == []:
        return True
    since = version.noncurrent_since
    custom = _moment(version.fields.get("customTime"))
    simple = {
        "isLive": (since is None) == value,
        "matchesStorageClass": isinstance(value, list) and version.storage_class in value,
        "matchesPrefix": name_matches({name: value}, version.name),
        "matchesSuffix": name_matches({name: value}, version.name),
    }
    if name in simple:
        return simple[name]
    number = float(str(value)) if str(value).isdigit() else 0.0
    if name == "sizeAboveBytes":
        return version.size > number
    if name == "sizeBelowBytes":
        return version.size < number
    if name == "numNewerVersions":
        return newer >= number
    moments = {"age": version.created, "daysSinceCustomTime": custom}
    if name in ("age", "daysSinceCustomTime", "daysSinceNoncurrentTime"):
        moment = moments.get(name, since)
        return moment is not None and now >= moment + number * DAY
    dated = {"createdBefore": version.created, "customTimeBefore": custom}
    moment, limit = dated.get(name, since), _date(str(value))
    return moment is not None and limit is not None and moment < limit


def _date(text: str) -> float | None:
    """Return the beginning of a day in UTC, in seconds since the epoch."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc).timestamp()


def _moment(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return seconds_of(text)
    except ValueError:
        return None
