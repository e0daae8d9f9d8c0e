"""Lifecycle rules, and the hourly rounds that apply them and purge what was soft-deleted.

Sources: cloud.google.com/storage/docs/lifecycle (which actions and conditions there are, and that
all conditions of a rule must hold) and …/lifecycle-configurations (their limits).
"""

import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timezone

from localcloud.core.call import Json
from localcloud.core.clock import seconds_of
from localcloud.core.cloud import Cloud, cloud_started
from localcloud.services.storage import records, uploads, versions
from localcloud.services.storage.records import Bucket, Version

log = logging.getLogger(__name__)
_INTERVAL = 3600.0
"""Seconds between two rounds; Google's take up to a day to act on a rule."""


@cloud_started
def start(cloud: Cloud) -> None:
    """Clean up after a killed emulator, and start the rounds."""
    _settle(cloud)
    _collect(cloud)
    _round(cloud)


def apply(cloud: Cloud) -> int:
    """Do now what the rounds do; return how many versions and uploads changed."""
    changed = uploads.expire(cloud, uploads.LIFETIME)
    for bucket in records.all_buckets(cloud):
        rules = bucket.settings.get("lifecycle", {}).get("rule", [])
        with cloud.store.locked():
            changed += _purge(cloud, bucket.name)
            changed += sum(_apply_rule(cloud, bucket, rule) for rule in rules)
    for key, record in cloud.store.items(records.DELETED_BUCKET):
        changed += _purge(cloud, key)
        if record["soft_deleted"] + Bucket(**record).soft_delete_seconds <= cloud.clock.now():
            cloud.store.delete(records.DELETED_BUCKET, key)
    return changed


def _round(cloud: Cloud) -> None:
    changed = apply(cloud)
    if changed:
        log.info("lifecycle and expiry changed %d objects", changed)
    cloud.clock.at(cloud.clock.now() + _INTERVAL, lambda: _round(cloud))


def _settle(cloud: Cloud) -> None:
    """Undo a deletion that was interrupted: the object is still live."""
    for bucket in records.all_buckets(cloud):
        for kind in (records.noncurrent_kind(bucket.name), records.deleted_kind(bucket.name)):
            for key in cloud.store.keys(kind):
                name, generation = records.split_key(key)
                live = records.load(cloud, records.live_kind(bucket.name), name)
                if live is not None and live.generation == generation:
                    cloud.store.delete(kind, key)


def _collect(cloud: Cloud) -> None:
    """Delete the files that no record names, which a killed emulator may leave."""
    used: dict[str, set[str]] = defaultdict(set)
    for bucket in records.all_buckets(cloud):
        for kind in records.kinds(bucket.name):
            used[bucket.name] |= {record["content"] for _, record in cloud.store.items(kind)}
    kept = set(cloud.store.keys(records.UPLOAD))
    removed = versions.Contents(cloud).collect(used, kept)
    if removed:
        log.info("removed %d files of unfinished uploads and deletions", removed)


def _purge(cloud: Cloud, bucket: str) -> int:
    """Purge soft-deleted versions whose time is up."""
    purged = 0
    for key, record in cloud.store.items(records.deleted_kind(bucket)):
        if record["hard_delete"] <= cloud.clock.now():
            cloud.store.delete(records.deleted_kind(bucket), key)
            versions.Contents(cloud).remove(bucket, record["content"])
            purged += 1
    return purged


def _apply_rule(cloud: Cloud, bucket: Bucket, rule: Json) -> int:
    action, condition = rule["action"], rule["condition"]
    if action["type"] == "AbortIncompleteMultipartUpload":
        # Resumable uploads are the only ones that can be left incomplete here.
        age = condition.get("age", 0) * DAY
        return uploads.expire(cloud, age, bucket.name, lambda name: name_matches(condition, name))
    changed = 0
    now = cloud.clock.now()
    for version, newer in _versions(cloud, bucket):
        if not matches(condition, version, newer, now):
            continue
        if action["type"] == "SetStorageClass":
            changed += _set_class(cloud, bucket, version, action["storageClass"])
        elif versions.protection(cloud, bucket, version) is None:
            # A version that is held or retained waits; a later round finds it again.
            versions.delete(cloud, bucket, version)
            changed += 1
    return changed


def _versions(cloud: Cloud, bucket: Bucket) -> Iterator[tuple[Version, int]]:
    """Yield all live and noncurrent versions, each with how many newer ones there are."""
    by_name: dict[str, list[Version]] = defaultdict(list)
    for kind in (records.live_kind(bucket.name), records.noncurrent_kind(bucket.name)):
        for _, record in cloud.store.items(kind):
            version = Version(**record)
            by_name[version.name].append(version)
    for found in by_name.values():
        found.sort(key=lambda version: -version.generation)
        for newer, version in enumerate(found):
            yield version, newer


def _set_class(cloud: Cloud, bucket: Bucket, version: Version, storage_class: str) -> int:
    if version.storage_class == storage_class:
        return 0
    moved = replace(
        version,
        storage_class=storage_class,
        class_updated=cloud.clock.now(),
        metageneration=version.metageneration + 1,
    )
    records.replace_version(cloud, moved)
    return 1


# Rules: which are valid, and which versions they match.

DAY = 86400.0
_ACTIONS = ("Delete", "SetStorageClass", "AbortIncompleteMultipartUpload")
_COUNTS = ("age", "daysSinceCustomTime", "daysSinceNoncurrentTime", "numNewerVersions")
_DATES = ("createdBefore", "customTimeBefore", "noncurrentTimeBefore")
_UPLOAD_CONDITIONS = {"age", "matchesPrefix", "matchesSuffix"}


def rule_problems(lifecycle: Json) -> list[str]:
    """Return what Google would refuse about a bucket's `lifecycle`, one sentence each."""
    rules = lifecycle.get("rule") or []
    found = [] if len(rules) <= 100 else [f"A bucket has at most 100 rules, not {len(rules)}."]
    for index, rule in enumerate(rules):
        for problem in _rule_problems(rule):
            found.append(f"Invalid lifecycle.rule[{index}]: {problem}.")
    return found


def matches(condition: Json, version: Version, newer: int, now: float) -> bool:
    """Return whether a version meets all conditions of a valid rule.

    `newer` is the number of newer versions of the same object, `now` in seconds since the epoch.
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
        found.append(f"action type '{kind}' is not one of {', '.join(_ACTIONS)}")
    if kind == "SetStorageClass" and action.get("storageClass") not in versions.STORAGE_CLASSES:
        found.append(f"storage class '{action.get('storageClass')}' does not exist")
    if kind != "SetStorageClass" and action.get("storageClass"):
        found.append(f"action {kind} takes no storageClass")
    if all(value is None for value in condition.values()):
        found.append("it has no condition")
    if kind == "AbortIncompleteMultipartUpload" and set(condition) - _UPLOAD_CONDITIONS:
        found.append(f"{kind} takes only the conditions {', '.join(sorted(_UPLOAD_CONDITIONS))}")
    if condition.get("matchesPattern"):
        found.append("matchesPattern is not available to this project")
    for name in _COUNTS:
        if (condition.get(name) or 0) < 0:
            found.append(f"{name} must not be negative")
    for name in _DATES:
        if condition.get(name) and _date_of(condition[name]) is None:
            found.append(f"{name} '{condition[name]}' is not a date such as 2026-01-31")
    for name in condition.get("matchesStorageClass") or []:
        if name not in versions.STORAGE_CLASSES:
            found.append(f"storage class '{name}' does not exist")
    return found


def _holds(name: str, value: object, version: Version, newer: int, now: float) -> bool:
    """Return whether one condition holds; one about a time that a version lacks never does."""
    if value is None or value == []:
        return True
    if name == "isLive":
        return (version.noncurrent_since is None) == value
    if name == "matchesStorageClass":
        return isinstance(value, list) and version.storage_class in value
    if name in ("matchesPrefix", "matchesSuffix"):
        return name_matches({name: value}, version.name)
    number = float(str(value)) if str(value).isdigit() else 0.0
    counted = {
        "sizeAboveBytes": version.size > number,
        "sizeBelowBytes": version.size < number,
        "numNewerVersions": newer >= number,
    }
    if name in counted:
        return counted[name]
    custom = _moment(version.fields.get("customTime"))
    moments = {
        **dict.fromkeys(("age", "createdBefore"), version.created),
        **dict.fromkeys(("daysSinceCustomTime", "customTimeBefore"), custom),
    }
    # The two that are left are about the time since when it is noncurrent.
    moment = moments.get(name, version.noncurrent_since)
    if moment is None:
        return False
    if name in _COUNTS:
        return now >= moment + number * DAY
    limit = _date_of(str(value))
    return limit is not None and moment < limit


def _date_of(text: str) -> float | None:
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
