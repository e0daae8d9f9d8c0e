"""The fields of an object that callers may set."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core.call import Json, Request
from localcloud.core.errors import ApiError, invalid
from localcloud.services.storage.content import Hashes

Change = Callable[[Json], Json]
"""What a call makes of an object's fields."""

STORAGE_CLASSES = (
    "STANDARD",
    "NEARLINE",
    "COLDLINE",
    "ARCHIVE",
    "MULTI_REGIONAL",
    "REGIONAL",
    "DURABLE_REDUCED_AVAILABILITY",
)
_PLAIN = {
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "eventBasedHold",
    "metadata",
    "temporaryHold",
}
_UNSUPPORTED = {"acl", "contexts", "customerEncryption", "kmsKeyName", "retention"}
_METADATA_LIMIT = 8192


def writable(body: Json) -> Json:
    """Return what the caller sets with `body`, without the fields that only Google sets.

    Raises:
        ApiError: 400 for metadata that is too long, 501 for a field that the local cloud knows
            but does not implement.
    """
    refused = sorted(name for name in _UNSUPPORTED if body.get(name))
    if refused:
        raise ApiError(501, f"the local cloud does not implement objects' {', '.join(refused)}")
    fields = {name: body[name] for name in _PLAIN if name in body}
    size = sum(
        len(key.encode()) + len((value or "").encode())
        for key, value in (fields.get("metadata") or {}).items()
    )
    if size > _METADATA_LIMIT:
        raise invalid(
            f"Metadata of {size} bytes is too long: keys and values may have {_METADATA_LIMIT} "
            "bytes together."
        )
    return fields


def without_nulls(fields: Json) -> Json:
    """Return `fields` of a new object: a null is the same as nothing."""
    kept = {name: value for name, value in fields.items() if value is not None}
    if "metadata" in kept:
        kept["metadata"] = {k: v for k, v in kept["metadata"].items() if v is not None}
    return kept


def patched(fields: Json, changes: Json) -> Json:
    """`fields` after a PATCH: a null deletes, and `metadata` is changed key by key."""
    merged = fields | changes
    if changes.get("metadata") is not None:
        merged["metadata"] = fields.get("metadata", {}) | changes["metadata"]
    return without_nulls(merged)


def storage_class(body: Json, default: str) -> str:
    """Return the storage class that `body` asks for.

    Raises:
        ApiError: 400 for one that doesn't exist.
    """
    wanted = body.get("storageClass") or default
    check_storage_class(wanted)
    return str(wanted)


def check_storage_class(name: str) -> None:
    """Refuse a storage class that doesn't exist.

    Raises:
        ApiError: 400.
    """
    if name not in STORAGE_CLASSES:
        raise invalid(
            f"Invalid argument: storage class '{name}' is none of {', '.join(STORAGE_CLASSES)}."
        )


def hashes(body: Json) -> Hashes:
    """Return the checksums that the metadata of an upload promises."""
    return Hashes(body.get("md5Hash") or "", body.get("crc32c") or "")


def header_hashes(request: Request) -> Hashes:
    """Return the checksums in a request's headers."""
    sent = dict(
        part.strip().split("=", 1)
        for part in request.headers.get("X-Goog-Hash", "").split(",")
        if "=" in part
    )
    md5 = sent.get("md5", "") or request.headers.get("Content-MD5", "")
    return Hashes(md5, sent.get("crc32c", ""))
