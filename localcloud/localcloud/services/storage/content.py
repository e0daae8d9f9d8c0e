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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from localcloud.core.call import Stream
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid

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
