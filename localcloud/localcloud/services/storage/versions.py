"""An object's versions: their bytes and checksums, how one is written, replaced and deleted.

The bytes of a version are a file, its content. It is written under another name first and renamed
when it is whole, so that a killed emulator leaves no half object; files that no record names are
removed at the next start. Which versions outlive a deletion follows from object versioning
(cloud.google.com/storage/docs/object-versioning) and soft delete (…/soft-delete).
"""

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

from localcloud.core import ApiError, Cloud, invalid
from localcloud.core.call import Json, Principal, Request, Stream
from localcloud.services.storage import api, records
from localcloud.services.storage.records import Bucket, Version

CHUNK = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Hashes:
    """Checksums that a client sent for its bytes, in base64; empty where it sent none."""

    md5: str = ""
    crc32c: str = ""

    def __or__(self, other: "Hashes") -> "Hashes":
        return Hashes(self.md5 or other.md5, self.crc32c or other.crc32c)


@dataclass(frozen=True)
class Checksums:
    """Size in bytes and checksums of whole bytes, in base64 (…/storage/docs/hashes-etags).

    The MD5 of a composed object is unknown: Google has never seen its bytes in order.
    """

    size: int
    md5: str | None
    crc32c: str

    def check(self, sent: Hashes) -> None:
        """Compare with what the client sent; 400 in Google's words when they differ."""
        pairs = ("MD5 hash", sent.md5, self.md5), ("CRC32C", sent.crc32c, self.crc32c)
        for name, sent_value, computed in pairs:
            if sent_value and computed is not None and sent_value != computed:
                raise invalid(
                    f'Provided {name} "{sent_value}" doesn\'t match calculated {name} "{computed}".'
                )


def digest(chunks: Iterable[bytes]) -> Checksums:
    """Return the checksums of bytes while they pass, so that no file is read twice."""
    size = crc32c = 0
    md5 = hashlib.md5(usedforsecurity=False)
    for chunk in chunks:
        size += len(chunk)
        md5.update(chunk)
        crc32c = google_crc32c.extend(crc32c, chunk)
    # The CRC32C's four bytes are big-endian.
    both = md5.digest(), crc32c.to_bytes(4, "big")
    return Checksums(size, *(base64.b64encode(each).decode() for each in both))


def fill(path: Path, chunks: Iterable[bytes]) -> Checksums:
    """Write all of `chunks` to a file; 507 if the disk is full."""
    with disk_errors(), path.open("wb") as file:
        # `write` returns how many bytes it took; a chunk of none changes no checksum.
        return digest(chunk for chunk in chunks if file.write(chunk))


class Contents:
    """The content files below a cloud's home.

    No bucket's name begins with a dot, so `.uploads` (resumable uploads that are not finished) and
    `.partial` (drafts) can stand next to the folders of buckets.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._root = cloud.home / "objects"

    def path(self, bucket: str, content: str) -> Path:
        """Return the file of a content."""
        return self._root / bucket / content

    def upload_path(self, upload: str) -> Path:
        """Return the file that holds what an unfinished resumable upload has sent so far."""
        return self._folder(".uploads") / upload

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a new draft, a file which is deleted at the end unless it was kept."""
        path = self._folder(".partial") / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def keep(self, path: Path, bucket: str) -> str:
        """Move a whole file into the bucket and return the content's name."""
        content = uuid.uuid4().hex
        with disk_errors():
            path.replace(self._folder(bucket) / content)
        return content

    def link(self, bucket: str, content: str, target: Path) -> None:
        """Let `target` hold the same bytes, without copying them where the disk has hard links."""
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


UPLOAD_LIFETIME = 7 * 86400.0
"""Seconds after which Google forgets the session of a resumable upload."""


def discard_upload(cloud: Cloud, upload: str) -> None:
    """Forget a resumable upload and what it has sent."""
    cloud.store.delete(records.UPLOAD, upload)
    Contents(cloud).upload_path(upload).unlink(missing_ok=True)


def chunks_of(stream: Stream) -> Iterator[bytes]:
    """Yield the bytes of a stream in small chunks: if it breaks off, little is lost."""
    while chunk := stream.read(1 << 18):
        yield chunk


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn a full disk into an error that clients understand and do not retry."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ApiError(507, f"the local cloud's disk is full: {error.strerror}") from None


@dataclass(frozen=True)
class Write:
    """An object that a caller wants to write.

    Everything is checked twice: before any byte is read, so that a hopeless upload of gigabytes
    fails at once, and when the bytes are there, since another write may have been faster.

    Attributes:
        principal: whose permission counts when an object is replaced.
        body: the object resource that the caller sent.
        hashes: checksums that the bytes must have.
    """

    bucket: str
    name: str
    principal: Principal
    body: Json = field(default_factory=dict)
    conditions: api.Conditions = field(default_factory=api.Conditions)
    hashes: Hashes = field(default_factory=Hashes)

    def check(self, cloud: Cloud) -> None:
        """Refuse what can't succeed before any byte is read."""
        records.check_object_name(self.name)
        writable(self.body)
        storage_class(self.body, "STANDARD")
        self._require(cloud, "storage.objects.create")
        self._admit(cloud)

    def take(self, cloud: Cloud, chunks: Iterable[bytes]) -> Version:
        """Check, write the bytes, and make them the object's live version; see `finish`."""
        self.check(cloud)
        with Contents(cloud).draft() as path:
            return self.finish(cloud, path, fill(path, chunks))

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
            version = Version(
                bucket=self.bucket,
                name=self.name,
                generation=_next_generation(cloud, self.bucket, self.name),
                metageneration=1,
                content=Contents(cloud).keep(path, self.bucket),
                size=checksums.size,
                crc32c=checksums.crc32c,
                md5=checksums.md5,
                storage_class=storage_class(self.body, bucket.settings["storageClass"]),
                created=now,
                updated=now,
                class_updated=now,
                fields=fields,
                components=components,
                kms_version=api.encrypting_version(cloud, bucket),
            )
            _publish(cloud, bucket, version)
        return version

    def _admit(self, cloud: Cloud) -> Bucket:
        bucket = records.require_bucket(cloud, self.bucket)
        live = records.find(cloud, self.bucket, self.name)
        self.conditions.check(live)
        if live is not None:
            # Replacing takes the permission to delete, too, as on Google.
            self._require(cloud, "storage.objects.delete")
        return bucket

    def _require(self, cloud: Cloud, permission: str) -> None:
        api.require(cloud, self.principal, self.bucket, permission, self.name)


def _next_generation(cloud: Cloud, bucket: str, name: str) -> int:
    """Return a new version's generation: microseconds since the epoch, no two of them alike."""
    generation = int(cloud.clock.now() * 1_000_000)
    live = records.load(cloud, records.live_kind(bucket), name)
    if live is not None:
        generation = max(generation, live.generation + 1)
    # A virtual clock may stand still, and would give a deleted version's number again.
    while cloud.store.get(
        records.noncurrent_kind(bucket), records.version_key(name, generation)
    ) or cloud.store.get(records.DELETED, records.version_key(f"{bucket}/{name}", generation)):
        generation += 1
    return generation


def _publish(cloud: Cloud, bucket: Bucket, version: Version) -> None:
    """Make `version` the live one; hold the store's lock and have checked everything before."""
    old = records.load(cloud, records.live_kind(bucket.name), version.name)
    kept = old is None or _keep(cloud, bucket, old, noncurrent=bucket.versioned)
    records.save(cloud, records.live_kind(bucket.name), version.name, version)
    if old is not None and not kept:
        Contents(cloud).remove(bucket.name, old.content)


def delete(cloud: Cloud, bucket: Bucket, version: Version, *, for_good: bool = False) -> None:
    """Delete a live or noncurrent version; hold the store's lock.

    With `for_good` a live version does not become noncurrent, as when its generation was named.
    The copy is kept before the live record goes: killed in between, the emulator still has it, and
    its next start undoes the half deletion.
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


def _keep(cloud: Cloud, bucket: Bucket, version: Version, *, noncurrent: bool) -> bool:
    """Keep a version as noncurrent; False, and a note of what Google keeps, when it is deleted."""
    now = cloud.clock.now()
    if noncurrent:
        kept = replace(version, noncurrent_since=now)
        key = records.version_key(version.name, version.generation)
        records.save(cloud, records.noncurrent_kind(bucket.name), key, kept)
    elif bucket.soft_delete_seconds:
        key = records.version_key(f"{bucket.name}/{version.name}", version.generation)
        until = now + bucket.soft_delete_seconds
        cloud.store.put(records.DELETED, key, {"size": version.size, "until": until})
    return noncurrent


# Fields that callers may set (cloud.google.com/storage/docs/json_api/v1/objects#resource).

Change = Callable[[Json], Json]
"""What a call makes of an object's fields."""
STORAGE_CLASSES = ("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE")
_PLAIN = {
    *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType"),
    *("customTime", "metadata"),
}
_UNSUPPORTED = {
    *("acl", "contexts", "customerEncryption", "eventBasedHold", "kmsKeyName", "retention"),
    "temporaryHold",
}


def writable(body: Json) -> Json:
    """Return the fields that the caller may set; 501 for those that the local cloud lacks."""
    refused = sorted(name for name in _UNSUPPORTED if body.get(name))
    if refused:
        raise ApiError(501, f"the local cloud does not implement objects' {', '.join(refused)}")
    return {name: body[name] for name in _PLAIN if name in body}


# docs.cloud.google.com/storage/quotas: keys and values of custom metadata together (2026-11).
_MOST_METADATA = 8 << 10


def without_nulls(fields: Json) -> Json:
    """Return `fields` of a new object: a null is the same as nothing. 400 for too much metadata."""
    kept = {name: value for name, value in fields.items() if value is not None}
    if "metadata" in kept:
        kept["metadata"] = {k: v for k, v in kept["metadata"].items() if v is not None}
        size = sum(
            len(f"{k}{v}".encode(errors="surrogatepass")) for k, v in kept["metadata"].items()
        )
        if size > _MOST_METADATA:
            raise invalid(f"The custom metadata has {size} bytes, more than {_MOST_METADATA}.")
    return kept


def patched(fields: Json, changes: Json) -> Json:
    """`fields` after a PATCH: a null deletes, and `metadata` is changed key by key."""
    merged = fields | changes
    if changes.get("metadata") is not None:
        merged["metadata"] = fields.get("metadata", {}) | changes["metadata"]
    return without_nulls(merged)


def storage_class(body: Json, default: str) -> str:
    """Return the storage class that `body` asks for; 400 for one that does not exist."""
    wanted = str(body.get("storageClass") or default)
    if wanted not in STORAGE_CLASSES:
        known = ", ".join(STORAGE_CLASSES)
        raise invalid(f"Invalid argument: storage class '{wanted}' is not one of {known}.")
    return wanted


def header_hashes(request: Request) -> Hashes:
    """Return the checksums in a request's headers: Google's own, or RFC 1864's for the MD5."""
    named = request.headers.get("X-Goog-Hash", "").split(",")
    sent = dict(part.strip().split("=", 1) for part in named if "=" in part)
    md5 = sent.get("md5", "") or request.headers.get("Content-MD5", "")
    return Hashes(md5, sent.get("crc32c", ""))
