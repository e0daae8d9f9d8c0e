"""Buckets and object versions as the store keeps them.

Every bucket has three kinds of its own in the store, so that listing one never walks through the
objects of another: `object/B` holds the live version of each name, `noncurrent-object/B` the older
ones and `soft-deleted-object/B` those that can still be restored.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from localcloud.core.call import Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError

BUCKET = "bucket"
DELETED_BUCKET = "soft-deleted-bucket"
"""The store's kind of deleted buckets that are still kept, by `version_key`."""
UPLOAD = "upload"


@dataclass
class Bucket:
    """A bucket: what never changes, and its settings as the API shows them."""

    name: str
    project: str
    project_number: str
    location: str
    location_type: str
    generation: int
    metageneration: int
    created: float
    updated: float
    settings: Json
    soft_deleted: float | None = None

    @property
    def public_access_prevented(self) -> bool:
        """Whether nobody may be let in without a Google account."""
        iam: Json = self.settings["iamConfiguration"]
        return bool(iam["publicAccessPrevention"] == "enforced")

    @property
    def uniform_access(self) -> bool:
        """Whether policies alone decide, without access control lists."""
        iam: Json = self.settings["iamConfiguration"]
        return bool(iam["uniformBucketLevelAccess"]["enabled"])

    @property
    def versioned(self) -> bool:
        """Whether an object that is replaced or deleted becomes a noncurrent version."""
        return bool(self.settings.get("versioning", {}).get("enabled"))

    @property
    def soft_delete_seconds(self) -> int:
        """How long deleted objects can be restored; 0 when not at all."""
        return int(self.settings["softDeletePolicy"]["retentionDurationSeconds"])


@dataclass
class Version:
    """One generation of an object.

    Attributes:
        content: name of the file with its bytes, see `content.Contents`.
        md5: base64; None for a composed object, as on Google.
        fields: what the user set, such as `contentType` and `metadata`.
        noncurrent_since: when it was replaced or deleted in a versioned bucket.
        kms_version: version of the customer's key that it is encrypted with; None: Google's own.
        soft_deleted: when it was deleted, and `hard_delete` when it is gone for good.
    """

    bucket: str
    name: str
    generation: int
    metageneration: int
    content: str
    size: int
    crc32c: str
    md5: str | None
    storage_class: str
    created: float
    updated: float
    class_updated: float
    fields: Json
    components: int | None = None
    noncurrent_since: float | None = None
    soft_deleted: float | None = None
    hard_delete: float | None = None
    kms_version: str | None = None


def live_kind(bucket: str) -> str:
    """Return the store's kind of a bucket's live objects, by name."""
    return f"object/{bucket}"


def noncurrent_kind(bucket: str) -> str:
    """Return the store's kind of a bucket's noncurrent versions, by `version_key`."""
    return f"noncurrent-object/{bucket}"


def deleted_kind(bucket: str) -> str:
    """Return the store's kind of a bucket's soft-deleted versions, by `version_key`."""
    return f"soft-deleted-object/{bucket}"


def kinds(bucket: str) -> tuple[str, str, str]:
    """Return all kinds of the store in which a bucket has versions."""
    return live_kind(bucket), noncurrent_kind(bucket), deleted_kind(bucket)


def version_key(name: str, generation: int) -> str:
    """Return the key of a version; a name has no line feed, so that the key can be split again."""
    return f"{name}\n{generation:020d}"


def split_key(key: str) -> tuple[str, int]:
    """Return name and generation of a key made by `version_key`."""
    name, _, generation = key.rpartition("\n")
    return name, int(generation)


def find_bucket(cloud: Cloud, name: str) -> Bucket | None:
    """Return the bucket, or None."""
    record = cloud.store.get(BUCKET, name)
    return Bucket(**record) if record is not None else None


def require_bucket(cloud: Cloud, name: str) -> Bucket:
    """Return the bucket.

    Raises:
        ApiError: 404 when there is none.
    """
    bucket = find_bucket(cloud, name)
    if bucket is None:
        raise ApiError(404, "The specified bucket does not exist.")
    return bucket


def put_bucket(cloud: Cloud, bucket: Bucket) -> None:
    """Create or replace a bucket."""
    cloud.store.put(BUCKET, bucket.name, asdict(bucket))


def all_buckets(cloud: Cloud, kind: str = BUCKET) -> list[Bucket]:
    """Return all buckets by name."""
    return [Bucket(**record) for _, record in cloud.store.items(kind)]


def load(cloud: Cloud, kind: str, key: str) -> Version | None:
    """Return the version under a key of one of the three kinds, or None."""
    record = cloud.store.get(kind, key)
    return Version(**record) if record is not None else None


def save(cloud: Cloud, kind: str, key: str, version: Version) -> None:
    """Put a version under a key of one of the three kinds."""
    cloud.store.put(kind, key, record_of(version))


def replace_version(cloud: Cloud, version: Version) -> None:
    """Put a changed version back where it stands, live or noncurrent."""
    if version.noncurrent_since is None:
        save(cloud, live_kind(version.bucket), version.name, version)
    else:
        key = version_key(version.name, version.generation)
        save(cloud, noncurrent_kind(version.bucket), key, version)


def record_of(version: Version) -> dict[str, Any]:
    """Return the version as JSON, without what is None."""
    return {key: value for key, value in vars(version).items() if value is not None or key == "md5"}


def find(cloud: Cloud, bucket: str, name: str, generation: int | None = None) -> Version | None:
    """Return the live version of an object, or the one of a generation, or None."""
    with cloud.store.locked():
        live = load(cloud, live_kind(bucket), name)
        if generation is None or (live is not None and live.generation == generation):
            return live
        return load(cloud, noncurrent_kind(bucket), version_key(name, generation))


def find_deleted(cloud: Cloud, bucket: str, name: str, generation: int) -> Version | None:
    """Return the soft-deleted version of a generation, or None."""
    return load(cloud, deleted_kind(bucket), version_key(name, generation))


def missing(bucket: str, name: str) -> ApiError:
    """Return the 404 for an object."""
    return ApiError(404, f"No such object: {bucket}/{name}")


def require(cloud: Cloud, bucket: str, name: str, generation: int | None = None) -> Version:
    """Return the live version of an object, or the one of a generation.

    Raises:
        ApiError: 404 when there is none.
    """
    found = find(cloud, bucket, name, generation)
    if found is None:
        raise missing(bucket, name)
    return found
