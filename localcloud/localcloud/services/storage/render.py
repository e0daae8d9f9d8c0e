"""Buckets and objects as the JSON API shows them."""

from __future__ import annotations

import base64
from urllib.parse import quote

from localcloud.core.call import Json
from localcloud.core.clock import rfc3339
from localcloud.services.storage.records import Bucket, Version

_API = "https://www.googleapis.com/storage/v1/b"
_MEDIA = "https://storage.googleapis.com/download/storage/v1/b"


def etag(*numbers: int) -> str:
    """Return an entity tag in the form of Google's: a protocol buffer of the numbers in base64."""
    encoded = bytearray()
    for field, number in enumerate(numbers, start=1):
        encoded.append(field << 3)
        while number > 0x7F:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        encoded.append(number)
    return base64.b64encode(encoded).decode()


def bucket_resource(bucket: Bucket) -> Json:
    """Return the bucket as the API shows it."""
    shown = {
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
    if bucket.soft_deleted:
        shown["softDeleteTime"] = rfc3339(bucket.soft_deleted)
        shown["hardDeleteTime"] = rfc3339(bucket.soft_deleted + bucket.soft_delete_seconds)
    if bucket.location_type == "region":
        shown["satisfiesPZI"] = True
    uniform = bucket.settings["iamConfiguration"]["uniformBucketLevelAccess"]
    shown["iamConfiguration"] = bucket.settings["iamConfiguration"] | {"bucketPolicyOnly": uniform}
    return shown


def object_etag(version: Version) -> str:
    """Return the entity tag of an object's metadata."""
    return etag(version.generation, version.metageneration)


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
        "etag": object_etag(version),
        "timeCreated": rfc3339(version.created),
        "updated": rfc3339(version.updated),
        "timeStorageClassUpdated": rfc3339(version.class_updated),
        "timeFinalized": rfc3339(version.created),
        **version.fields,
    }
    if version.md5 is not None:
        shown["md5Hash"] = version.md5
    if version.kms_version is not None:
        shown["kmsKeyName"] = version.kms_version
    if version.components is not None:
        shown["componentCount"] = version.components
    for field, moment in (
        ("timeDeleted", version.noncurrent_since),
        ("softDeleteTime", version.soft_deleted),
        ("hardDeleteTime", version.hard_delete),
    ):
        if moment is not None:
            shown[field] = rfc3339(moment)
    return shown
