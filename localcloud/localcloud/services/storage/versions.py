"""What happens to an object's versions when one is written or deleted."""

from __future__ import annotations

from dataclasses import replace

from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.services.storage import records
from localcloud.services.storage.content import Contents
from localcloud.services.storage.records import Bucket, Version


def next_generation(cloud: Cloud, bucket: str, name: str) -> int:
    """Return a new version's generation: microseconds since the epoch, no two of them alike."""
    generation = int(cloud.clock.now() * 1_000_000)
    live = records.load(cloud, records.live_kind(bucket), name)
    if live is not None:
        generation = max(generation, live.generation + 1)
    # A clock that stands still (a virtual one) would give a deleted version's number again.
    kinds = (records.noncurrent_kind(bucket), records.deleted_kind(bucket))
    while any(cloud.store.get(kind, records.version_key(name, generation)) for kind in kinds):
        generation += 1
    return generation


def publish(cloud: Cloud, bucket: Bucket, version: Version) -> None:
    """Make `version` the live one; hold the store's lock and have checked everything before."""
    old = records.load(cloud, records.live_kind(bucket.name), version.name)
    kept = old is None or _keep(cloud, bucket, old, noncurrent=bucket.versioned)
    records.save(cloud, records.live_kind(bucket.name), version.name, version)
    if old is not None and not kept:
        Contents(cloud).remove(bucket.name, old.content)


def delete(cloud: Cloud, bucket: Bucket, version: Version, *, for_good: bool = False) -> None:
    """Delete a live or noncurrent version; hold the store's lock.

    Args:
        cloud: the cloud.
        bucket: the version's bucket.
        version: as it stands in the store.
        for_good: a live version does not become noncurrent, as when its generation was named.
    """
    live = version.noncurrent_since is None
    kept = _keep(cloud, bucket, version, noncurrent=live and bucket.versioned and not for_good)
    if live:
        cloud.store.delete(records.live_kind(bucket.name), version.name)
    else:
        key = records.version_key(version.name, version.generation)
        cloud.store.delete(records.noncurrent_kind(bucket.name), key)
    if not kept:
        Contents(cloud).remove(bucket.name, version.content)


def protect(cloud: Cloud, bucket: Bucket, version: Version) -> None:
    """Refuse to delete or replace a version that is held or must be retained.

    Raises:
        ApiError: 403.
    """
    error = protection(cloud, bucket, version)
    if error is not None:
        raise error


def protection(cloud: Cloud, bucket: Bucket, version: Version) -> ApiError | None:
    """Return why a version may not be deleted or replaced, or None when it may."""
    for hold, name in (("temporaryHold", "Temporary"), ("eventBasedHold", "Event-Based")):
        if version.fields.get(hold):
            return ApiError(
                403,
                f"Object '{bucket.name}/{version.name}' is under active {name} hold and cannot be "
                "deleted, overwritten or archived until hold is removed.",
            )
    period = int(bucket.settings.get("retentionPolicy", {}).get("retentionPeriod", 0))
    until = version.created + period
    if period and cloud.clock.now() < until:
        return ApiError(
            403,
            f"Object '{bucket.name}/{version.name}' is subject to bucket's retention policy or "
            f"object retention and cannot be deleted or overwritten until {rfc3339(until)}",
            reason="retentionPolicyNotMet",
        )
    return None


def _keep(cloud: Cloud, bucket: Bucket, version: Version, *, noncurrent: bool) -> bool:
    """Keep a version that goes as noncurrent or soft-deleted; False when it is gone for good."""
    now = cloud.clock.now()
    if noncurrent:
        kind = records.noncurrent_kind(bucket.name)
        kept = replace(version, noncurrent_since=now)
    elif bucket.soft_delete_seconds:
        kind = records.deleted_kind(bucket.name)
        end = now + bucket.soft_delete_seconds
        kept = replace(version, soft_deleted=now, hard_delete=end)
    else:
        return False
    key = records.version_key(version.name, version.generation)
    records.save(cloud, kind, key, kept)
    return True
