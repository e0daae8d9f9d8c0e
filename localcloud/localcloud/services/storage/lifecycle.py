"""Lifecycle rules, and the hourly rounds that apply them and purge what was soft-deleted.

Sources: cloud.google.com/storage/docs/lifecycle (which actions and conditions there are, and that
all conditions of a rule must hold) and …/lifecycle-configurations (their limits).
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from localcloud.core.call import Json
from localcloud.core.cloud import Cloud, cloud_started
from localcloud.core.errors import ApiError
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
    changed = uploads.expire(cloud)
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
    changed = 0
    now = cloud.clock.now()
    for version, newer in _versions(cloud, bucket):
        if not matches(condition, version, newer, now):
            continue
        if action["type"] == "SetStorageClass":
            changed += _set_class(cloud, bucket, version, action["storageClass"])
        else:
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


# Rules: which are valid, and which versions they match. Of Google's conditions those are here that
# a stack can set; the others are refused by name when a bucket is to have them.

_DAY = 86400.0
_ACTIONS = ("Delete", "SetStorageClass")
_COUNTS = ("age", "daysSinceNoncurrentTime", "numNewerVersions")
_CONDITIONS = (*_COUNTS, "isLive", "matchesPrefix", "matchesSuffix")


def rule_problems(lifecycle: Json) -> list[str]:
    """Return what Google would refuse about a bucket's `lifecycle`, one sentence each.

    Raises ApiError: 501 for a condition that the local cloud does not know.
    """
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
    since = version.noncurrent_since
    holds: dict[str, Callable[[Any], bool]] = {
        "age": lambda days: now >= version.created + days * _DAY,
        # A live version has no such time, so that the condition never holds.
        "daysSinceNoncurrentTime": lambda days: since is not None and now >= since + days * _DAY,
        "numNewerVersions": lambda number: newer >= number,
        "isLive": lambda live: (since is None) == live,
        "matchesPrefix": lambda texts: not texts or version.name.startswith(tuple(texts)),
        "matchesSuffix": lambda texts: not texts or version.name.endswith(tuple(texts)),
    }
    return all(
        holds[name](value)
        for name, value in condition.items()
        if name in holds and value is not None
    )


def _rule_problems(rule: Json) -> Iterator[str]:
    action, condition = rule.get("action") or {}, rule.get("condition") or {}
    kind = action.get("type")
    sent = {name for name, value in condition.items() if value is not None}
    # Google's provider sends those that are not set as 0, an empty text or an empty list.
    if unknown := sorted(name for name in sent.difference(_CONDITIONS) if condition[name]):
        raise ApiError(501, f"the local cloud does not implement {', '.join(unknown)} of rules")
    if kind not in _ACTIONS:
        yield f"action type '{kind}' is not one of {', '.join(_ACTIONS)}"
    if kind == "SetStorageClass" and action.get("storageClass") not in versions.STORAGE_CLASSES:
        yield f"storage class '{action.get('storageClass')}' does not exist"
    if kind != "SetStorageClass" and action.get("storageClass"):
        yield f"action {kind} takes no storageClass"
    if not sent.intersection(_CONDITIONS):
        yield "it has no condition"
    for name in _COUNTS:
        if (condition.get(name) or 0) < 0:
            yield f"{name} must not be negative"
