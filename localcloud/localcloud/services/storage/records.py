"""Buckets and object versions: as the store keeps them, and as the JSON API shows them.

Every bucket has two kinds of its own in the store, so that listing one never walks through the
objects of another: `object/B` holds the live version of each name and `noncurrent-object/B` the
older ones. Of what is soft-deleted only the bytes count: it can't be restored here. Times are
seconds since the epoch; generations are microseconds since then, as Google's are.
"""

import base64
import re
from dataclasses import dataclass
from urllib.parse import quote

from localcloud.core import ApiError, Cloud, Json, invalid, rfc3339

BUCKET = "bucket"
DELETED = "soft-deleted-object"
"""The store's kind of versions that Google would still keep and bill, with `size` and `until`, by
`version_key` of BUCKET/NAME. They outlive their bucket.
"""
UPLOAD = "upload"


@dataclass
class Bucket:
    """A bucket: what never changes, and its settings as the API shows them.

    Settings are complete: `buckets` has filled in Google's defaults when they were written.
    """

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

    @property
    def public_access_prevented(self) -> bool:
        """Whether access without a Google account is never allowed."""
        return str(self.settings["iamConfiguration"]["publicAccessPrevention"]) == "enforced"

    @property
    def uniform_access(self) -> bool:
        """Whether policies alone decide, without access control lists."""
        return bool(self.settings["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"])

    @property
    def versioned(self) -> bool:
        """Whether an object that is replaced or deleted becomes a noncurrent version."""
        return bool(self.settings.get("versioning", {}).get("enabled"))

    @property
    def soft_delete_seconds(self) -> int:
        """How long Google keeps deleted objects; 0 when not at all."""
        return int(self.settings["softDeletePolicy"]["retentionDurationSeconds"])


@dataclass
class Version:
    """One generation of an object.

    Attributes:
        content: name of the file with its bytes, see `versions.Contents`.
        md5: base64; None for a composed object, as on Google.
        fields: what the user set, such as `contentType` and `metadata`.
        noncurrent_since: when it was replaced or deleted in a versioned bucket.
        kms_version: version of the customer's key that it is encrypted with; None: Google's own.
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
    kms_version: str | None = None


def live_kind(bucket: str) -> str:
    """Return the store's kind of a bucket's live objects, by name."""
    return f"object/{bucket}"


def noncurrent_kind(bucket: str) -> str:
    """Return the store's kind of a bucket's noncurrent versions, by `version_key`."""
    return f"noncurrent-object/{bucket}"


def version_key(name: str, generation: int) -> str:
    """Return the key of a version; a name has no line feed, so that the key can be split again.

    Twenty digits hold every 64-bit number, so that keys sort as their generations do.
    """
    return f"{name}\n{generation:020d}"


def split_key(key: str) -> tuple[str, int]:
    """Return name and generation of a key made by `version_key`."""
    name, _, generation = key.rpartition("\n")
    return name, int(generation)


def require_bucket(cloud: Cloud, name: str) -> Bucket:
    """Return the bucket; 404 when there is none."""
    record = cloud.store.view(BUCKET, name)
    if record is None:
        raise ApiError(404, "The specified bucket does not exist.")
    return Bucket(**record)


def put_bucket(cloud: Cloud, bucket: Bucket) -> None:
    """Create or replace a bucket."""
    cloud.store.put(BUCKET, bucket.name, vars(bucket))


def all_buckets(cloud: Cloud) -> list[Bucket]:
    """Return all buckets by name."""
    return [Bucket(**record) for _, record in cloud.store.items(BUCKET)]


def load(cloud: Cloud, kind: str, key: str) -> Version | None:
    """Return the version under a key of one of the two kinds, or None."""
    record = cloud.store.get(kind, key)
    return Version(**record) if record is not None else None


def save(cloud: Cloud, kind: str, key: str, version: Version) -> None:
    """Put a version under a key of one of the two kinds, without what is None."""
    fields = vars(version).items()
    cloud.store.put(kind, key, {k: v for k, v in fields if v is not None or k == "md5"})


def replace_version(cloud: Cloud, version: Version) -> None:
    """Store a changed version, live or noncurrent."""
    if version.noncurrent_since is None:
        save(cloud, live_kind(version.bucket), version.name, version)
    else:
        key = version_key(version.name, version.generation)
        save(cloud, noncurrent_kind(version.bucket), key, version)


def find(cloud: Cloud, bucket: str, name: str, generation: int | None = None) -> Version | None:
    """Return the live version of an object, or the one of a generation, or None."""
    with cloud.store.locked():
        live = load(cloud, live_kind(bucket), name)
        if generation is None or (live is not None and live.generation == generation):
            return live
        return load(cloud, noncurrent_kind(bucket), version_key(name, generation))


def missing(bucket: str, name: str) -> ApiError:
    """Return the 404 for an object."""
    return ApiError(404, f"No such object: {bucket}/{name}")


def require(cloud: Cloud, bucket: str, name: str, generation: int | None = None) -> Version:
    """Return the live version of an object, or the one of a generation; 404 when there is none."""
    found = find(cloud, bucket, name, generation)
    if found is None:
        raise missing(bucket, name)
    return found


# Names of buckets and objects. The rules are Google's; its answers name only the name.

# A name with dots is a domain, which takes a proof of ownership.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]")
_GOOGLES = re.compile(r"^goog|google|g00gle")


def check_bucket_name(name: str) -> None:
    """Refuse a name that no bucket may have (cloud.google.com/storage/docs/buckets#naming)."""
    if not _BUCKET.fullmatch(name) or _GOOGLES.search(name):
        raise invalid(
            f"Invalid bucket name: '{name}': it must have 3 to 63 lower-case letters, digits, "
            "dashes and underscores, begin and end with a letter or digit, and neither begin with "
            "'goog' nor contain 'google'."
        )


def check_object_name(name: str) -> None:
    """Refuse a name that no object may have (cloud.google.com/storage/docs/objects#naming)."""
    problem = _object_problem(name)
    if problem:
        raise invalid(f"Invalid object name: {name[:80]!r}: {problem}.")


def _object_problem(name: str) -> str:
    if not name:
        return "it must not be empty"
    try:
        size = len(name.encode())
    # A half of a surrogate pair, which JSON can write and UTF-8 can't.
    except UnicodeEncodeError:
        return "it must be valid Unicode"
    if size > 1024:
        return "it must not be longer than 1024 bytes in UTF-8"
    if "\n" in name or "\r" in name:
        return "it must not contain a line feed or carriage return"
    if name in (".", ".."):
        return "it must not be '.' or '..'"
    if name.startswith(".well-known/acme-challenge/"):
        return "it must not begin with '.well-known/acme-challenge/'"
    return ""


# As the JSON API shows them.

_API = "https://www.googleapis.com/storage/v1/b"
_MEDIA = "https://storage.googleapis.com/download/storage/v1/b"


def etag(*numbers: int) -> str:
    """Return an entity tag, opaque to clients: another for each generation or metageneration."""
    return base64.b64encode(" ".join(map(str, numbers)).encode()).decode()


def bucket_resource(bucket: Bucket) -> Json:
    """Return the bucket as the API shows it."""
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "name": bucket.name,
        "selfLink": f"{_API}/{bucket.name}",
        "projectNumber": bucket.project_number,
        "generation": str(bucket.generation),
        "metageneration": str(bucket.metageneration),
        "location": bucket.location,
        "locationType": bucket.location_type,
        "timeCreated": rfc3339(bucket.created),
        "updated": rfc3339(bucket.updated),
        "etag": etag(bucket.metageneration),
        **bucket.settings,
    }


def object_resource(version: Version) -> Json:
    """Return the object version as the API shows it."""
    name = quote(version.name, safe="")
    generation = str(version.generation)
    shown: Json = {
        "kind": "storage#object",
        "id": f"{version.bucket}/{version.name}/{generation}",
        "selfLink": f"{_API}/{version.bucket}/o/{name}",
        "mediaLink": f"{_MEDIA}/{version.bucket}/o/{name}?generation={generation}&alt=media",
        "name": version.name,
        "bucket": version.bucket,
        "generation": generation,
        "metageneration": str(version.metageneration),
        "storageClass": version.storage_class,
        "size": str(version.size),
        "crc32c": version.crc32c,
        "etag": etag(version.generation, version.metageneration),
        "timeCreated": rfc3339(version.created),
        "updated": rfc3339(version.updated),
        "timeStorageClassUpdated": rfc3339(version.class_updated),
        "timeFinalized": rfc3339(version.created),
        **version.fields,
    }
    sometimes: Json = {
        "md5Hash": version.md5,
        "kmsKeyName": version.kms_version,
        "componentCount": version.components,
    }
    if version.noncurrent_since is not None:
        sometimes["timeDeleted"] = rfc3339(version.noncurrent_since)
    return shown | {name: value for name, value in sometimes.items() if value is not None}
