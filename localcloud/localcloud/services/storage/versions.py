"""The bytes of objects on disk, and their checksums.

A content is a file that is written under another name first and renamed when it is whole, so that
a killed emulator leaves no half object. Files that no record names are collected at the start.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import google_crc32c

from localcloud.core.call import Json, Principal, Request, Stream
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services.storage import api, records
from localcloud.services.storage.api import Conditions
from localcloud.services.storage.records import Bucket, Version, check_object_name

CHUNK = 1 << 20
_ARRIVING = 1 << 18
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Hashes:
    """Checksums that a client sent for its bytes, in base64."""

    md5: str = ""
    crc32c: str = ""

    def __or__(self, other: Hashes) -> Hashes:
        return Hashes(self.md5 or other.md5, self.crc32c or other.crc32c)


@dataclass(frozen=True)
class Checksums:
    """Size and checksums of whole bytes, in base64; the MD5 may be unknown."""

    size: int
    md5: str | None
    crc32c: str

    def check(self, sent: Hashes) -> None:
        """Compare with what the client sent; 400 in Google's words when they differ."""
        for name, sent_value, computed in (
            ("MD5 hash", sent.md5, self.md5),
            ("CRC32C", sent.crc32c, self.crc32c),
        ):
            if sent_value and computed is not None and sent_value != computed:
                raise invalid(
                    f'Provided {name} "{sent_value}" doesn\'t match calculated {name} "{computed}".'
                )


class Digest:
    """Computes the checksums of bytes while they pass."""

    def __init__(self) -> None:
        self._size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc32c = 0

    def update(self, chunk: bytes) -> None:
        """Add the next bytes."""
        self._size += len(chunk)
        self._md5.update(chunk)
        self._crc32c = google_crc32c.extend(self._crc32c, chunk)

    def result(self) -> Checksums:
        """Return the checksums of all bytes so far."""
        crc32c = self._crc32c.to_bytes(4, "big")
        return Checksums(
            self._size,
            base64.b64encode(self._md5.digest()).decode(),
            base64.b64encode(crc32c).decode(),
        )


class Draft:
    """Bytes on their way to an object: a file that goes away unless it is moved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = Digest()

    def fill(self, chunks: Iterable[bytes]) -> None:
        """Write all of `chunks`."""
        with disk_errors(), self.path.open("wb") as file:
            for chunk in chunks:
                self.digest.update(chunk)
                file.write(chunk)


class Contents:
    """The content files below a cloud's home."""

    def __init__(self, cloud: Cloud) -> None:
        self._root = cloud.home / "objects"

    def path(self, bucket: str, content: str) -> Path:
        """Return the file of a content."""
        return self._root / bucket / content

    def upload_path(self, upload: str) -> Path:
        """Return the file that holds what an unfinished resumable upload has sent so far."""
        return self._folder(".uploads") / upload

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """Return a new draft, which is deleted at the end unless it was kept."""
        draft = Draft(self._folder(".partial") / uuid.uuid4().hex)
        try:
            yield draft
        finally:
            draft.path.unlink(missing_ok=True)

    def keep(self, path: Path, bucket: str) -> str:
        """Move a whole file into the bucket; the answer is the content's name."""
        content = uuid.uuid4().hex
        with disk_errors():
            path.replace(self._folder(bucket) / content)
        return content

    def link(self, bucket: str, content: str, target: Path) -> None:
        """Let `target` hold the same bytes, without copying them where the disk allows it."""
        source = self.path(bucket, content)
        with disk_errors():
            try:
                os.link(source, target)
            except OSError:
                shutil.copyfile(source, target)

    def remove(self, bucket: str, content: str) -> None:
        """Delete a content; readers that have it open are not disturbed."""
        self.path(bucket, content).unlink(missing_ok=True)

    def remove_bucket(self, bucket: str) -> None:
        """Delete a bucket's folder."""
        shutil.rmtree(self._root / bucket, ignore_errors=True)

    def collect(self, used: dict[str, set[str]], uploads: set[str]) -> int:
        """Delete all files but those of `used` (by bucket) and `uploads`; return how many."""
        removed = 0
        keep = used | {".uploads": uploads, ".partial": set()}
        for folder in self._root.glob("*"):
            for path in folder.iterdir():
                if path.name not in keep.get(folder.name, set()):
                    path.unlink()
                    removed += 1
            if folder.name not in keep:
                with suppress(OSError):
                    folder.rmdir()
        return removed

    def _folder(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def chunks_of(stream: Stream) -> Iterator[bytes]:
    """Return the bytes of a stream; if it breaks off, less than a chunk is lost."""
    while chunk := stream.read(_ARRIVING):
        yield chunk


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn a full disk into an error that clients understand."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ApiError(
            507,
            f"the local cloud's disk is full: {error.strerror}",
            status="RESOURCE_EXHAUSTED",
            reason="insufficientStorage",
        ) from None


# --- An object's versions: how one is written, replaced and deleted, and the fields it may have.


@dataclass(frozen=True)
class Write:
    """An object that a caller wants to write.

    Attributes:
        principal: whose permission counts when an object is replaced.
        body: the object resource that the caller sent.
        hashes: checksums that the bytes must have.
    """

    bucket: str
    name: str
    principal: Principal
    body: Json = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)
    hashes: Hashes = field(default_factory=Hashes)

    def check(self, cloud: Cloud) -> None:
        """Refuse what can't succeed before any byte is read."""
        check_object_name(self.name)
        writable(self.body)
        storage_class(self.body, "STANDARD")
        self._require(cloud, "storage.objects.create")
        self._admit(cloud)

    def take(self, cloud: Cloud, chunks: Iterable[bytes]) -> Version:
        """Check, write the bytes, and make them the object's live version; see `finish`."""
        self.check(cloud)
        with Contents(cloud).draft() as draft:
            draft.fill(chunks)
            return self.finish(cloud, draft.path, draft.digest.result())

    def finish(
        self, cloud: Cloud, path: Path, checksums: Checksums, *, components: int | None = None
    ) -> Version:
        """Move the file `path` into the bucket as the object's live version.

        It is 400 when the checksums differ, and 507 if the disk is full.
        """
        checksums.check(self.hashes)
        fields = without_nulls(writable(self.body))
        with cloud.store.locked():
            bucket = self._admit(cloud)
            now = cloud.clock.now()
            sorted_by_google = (bucket.settings.get("autoclass") or {}).get("enabled")
            if bucket.settings.get("defaultEventBasedHold"):
                fields.setdefault("eventBasedHold", True)
            version = Version(
                bucket=self.bucket,
                name=self.name,
                generation=next_generation(cloud, self.bucket, self.name),
                metageneration=1,
                content=Contents(cloud).keep(path, self.bucket),
                size=checksums.size,
                crc32c=checksums.crc32c,
                md5=checksums.md5,
                storage_class=storage_class(
                    {} if sorted_by_google else self.body, bucket.settings["storageClass"]
                ),
                created=now,
                updated=now,
                class_updated=now,
                fields=fields,
                components=components,
                kms_version=api.encrypting_version(cloud, bucket),
            )
            publish(cloud, bucket, version)
        return version

    def _admit(self, cloud: Cloud) -> Bucket:
        bucket = records.require_bucket(cloud, self.bucket)
        live = records.find(cloud, self.bucket, self.name)
        self.conditions.check(live)
        if live is not None:
            self._require(cloud, "storage.objects.delete")
            protect(cloud, bucket, live)
        return bucket

    def _require(self, cloud: Cloud, permission: str) -> None:
        api.require(cloud, self.principal, self.bucket, permission, self.name)


def next_generation(cloud: Cloud, bucket: str, name: str) -> int:
    """Return a new version's generation: microseconds since the epoch, no two of them alike."""
    generation = int(cloud.clock.now() * 1_000_000)
    live = records.load(cloud, records.live_kind(bucket), name)
    if live is not None:
        generation = max(generation, live.generation + 1)
    # A virtual clock may stand still, and would give a deleted version's number again.
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

    With `for_good` a live version does not become noncurrent, as when its generation was named.
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
    """Refuse to delete or replace a version that is held or must be retained (403)."""
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
    """Keep a version as noncurrent or soft-deleted; False when it is deleted for good."""
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


# Fields that callers may set.

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
    """Return the fields that the caller may set; 501 for those that the local cloud lacks."""
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
    """Return the storage class that `body` asks for."""
    wanted = body.get("storageClass") or default
    check_storage_class(wanted)
    return str(wanted)


def check_storage_class(name: str) -> None:
    """Refuse a storage class that doesn't exist."""
    if name not in STORAGE_CLASSES:
        raise invalid(
            f"Invalid argument: storage class '{name}' is not one of {', '.join(STORAGE_CLASSES)}."
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
