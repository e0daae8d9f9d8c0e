"""Applies lifecycle rules, and ends what was deleted or given up, in regular rounds."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from localcloud.core.call import Json
from localcloud.core.cloud import Cloud, cloud_started
from localcloud.services.storage import lifecycle_rules, records, resumable, versions
from localcloud.services.storage.content import Contents
from localcloud.services.storage.records import Bucket, Version

log = logging.getLogger(__name__)
_INTERVAL = 3600.0
"""Seconds between two rounds; Google's take up to a day to act on a rule."""


@cloud_started
def start(cloud: Cloud) -> None:
    """Clear what a killed emulator left behind, and begin the rounds."""
    _settle(cloud)
    _collect(cloud)
    _round(cloud)


def apply(cloud: Cloud) -> int:
    """Do now what the rounds do; return how many versions and uploads changed."""
    changed = resumable.expire(cloud, resumable.LIFETIME)
    for bucket in records.all_buckets(cloud):
        with cloud.store.locked():
            changed += _purge(cloud, bucket.name) + _apply_rules(cloud, bucket)
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
    """Undo a deletion that was cut off half-way: the object is still live."""
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
    removed = Contents(cloud).collect(used, set(cloud.store.keys(records.UPLOAD)))
    if removed:
        log.info("removed %d files of unfinished uploads and deletions", removed)


def _purge(cloud: Cloud, bucket: str) -> int:
    """End the time of soft-deleted versions."""
    purged = 0
    for key, record in cloud.store.items(records.deleted_kind(bucket)):
        if record["hard_delete"] <= cloud.clock.now():
            cloud.store.delete(records.deleted_kind(bucket), key)
            Contents(cloud).remove(bucket, record["content"])
            purged += 1
    return purged


def _apply_rules(cloud: Cloud, bucket: Bucket) -> int:
    rules = bucket.settings.get("lifecycle", {}).get("rule", [])
    return sum(_apply_rule(cloud, bucket, rule) for rule in rules)


def _apply_rule(cloud: Cloud, bucket: Bucket, rule: Json) -> int:
    action, condition = rule["action"], rule["condition"]
    if action["type"] == "AbortIncompleteMultipartUpload":
        # Resumable uploads are the only ones that can be left incomplete here.
        age = condition.get("age", 0) * lifecycle_rules.DAY
        return resumable.expire(
            cloud,
            age,
            bucket.name,
            lambda name: lifecycle_rules.name_matches(condition, name),
        )
    changed = 0
    now = cloud.clock.now()
    for version, newer in _versions(cloud, bucket):
        if not lifecycle_rules.matches(condition, version, newer, now):
            continue
        if action["type"] == "SetStorageClass":
            changed += _set_class(cloud, bucket, version, action["storageClass"])
        elif versions.protection(cloud, bucket, version) is None:
            versions.delete(cloud, bucket, version)
            changed += 1
    return changed


def _versions(cloud: Cloud, bucket: Bucket) -> Iterator[tuple[Version, int]]:
    """Return all live and noncurrent versions, each with how many newer ones there are."""
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
