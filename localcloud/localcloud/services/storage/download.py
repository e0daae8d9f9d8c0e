"""Sending an object's bytes: headers, ranges and decompression on the way."""

from __future__ import annotations

import base64
import gzip
import re
import string
import zlib
from collections.abc import Iterator
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import IO
from urllib.parse import quote

from localcloud.core.call import Request, Response
from localcloud.core.cloud import Cloud
from localcloud.services.storage import encryption, records
from localcloud.services.storage.content import CHUNK, Contents
from localcloud.services.storage.records import Version

_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")


def media(cloud: Cloud, version: Version, request: Request, etag: str) -> Response:
    """Return the object's bytes, or the range of them that the request asks for.

    Call it with the store locked: the file is opened here, and who deletes the object afterwards
    doesn't disturb the reader.
    """
    encryption.check_readable(cloud, records.require_bucket(cloud, version.bucket), version)
    headers = media_headers(version, etag)
    path = Contents(cloud).path(version.bucket, version.content)
    if _must_decompress(version, request):
        with suppress(OSError, EOFError, zlib.error):
            return _decompressed(path, headers)
    span = _span(request.headers.get("Range", ""), version.size)
    if span is None:
        message = b"The requested range cannot be satisfied."
        return Response(416, message, {"Content-Range": f"bytes */{version.size}"})
    start, length = span
    status = 200
    # An answer to a range is partial even when it is the whole object.
    if request.headers.get("Range") and _RANGE.fullmatch(request.headers["Range"].strip()):
        status = 206
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{version.size}"
    body: bytes | Iterator[bytes] = b""
    if request.verb != "HEAD":
        body = _pieces(path.open("rb"), start, length)
    return Response(status, body, headers | {"Content-Length": str(length)}, length)


def media_headers(version: Version, etag: str) -> dict[str, str]:
    """Return the headers that go with an object's bytes."""
    hashes = f"crc32c={version.crc32c}" + (f",md5={version.md5}" if version.md5 else "")
    encoding = version.fields.get("contentEncoding")
    content_type = version.fields.get("contentType") or "application/octet-stream"
    headers = {
        "Content-Type": _header_value(content_type),
        "ETag": etag,
        "Last-Modified": formatdate(version.updated, usegmt=True),
        "Accept-Ranges": "bytes",
        "x-goog-generation": str(version.generation),
        "x-goog-metageneration": str(version.metageneration),
        "x-goog-hash": hashes,
        "x-goog-storage-class": version.storage_class,
        "x-goog-stored-content-length": str(version.size),
        "x-goog-stored-content-encoding": _header_value(encoding or "identity"),
    }
    for field, header in (
        ("cacheControl", "Cache-Control"),
        ("contentDisposition", "Content-Disposition"),
        ("contentEncoding", "Content-Encoding"),
        ("contentLanguage", "Content-Language"),
    ):
        if version.fields.get(field):
            headers[header] = _header_value(version.fields[field])
    for key, value in version.fields.get("metadata", {}).items():
        headers[f"x-goog-meta-{quote(key)}"] = _header_value(value)
    return headers


def _header_value(value: str) -> str:
    """Return what a user set, in the form of a header: all but ASCII is percent-encoded."""
    return quote(value, safe=f" {string.punctuation}")


def md5_etag(version: Version) -> str:
    """Return the entity tag that the XML API gives: the MD5 in hexadecimal, where there is one."""
    if version.md5 is None:
        return f'"{version.generation}"'
    return f'"{base64.b64decode(version.md5).hex()}"'


def _must_decompress(version: Version, request: Request) -> bool:
    return (
        version.fields.get("contentEncoding") == "gzip"
        and "gzip" not in request.headers.get("Accept-Encoding", "")
        and "no-transform" not in version.fields.get("cacheControl", "")
    )


def _decompressed(path: Path, headers: dict[str, str]) -> Response:
    """Decompress stored gzip for a caller who did not ask for it (decompressive transcoding)."""
    del headers["Content-Encoding"]
    with gzip.open(path) as file:
        length = sum(len(chunk) for chunk in iter(lambda: file.read(CHUNK), b""))
    headers = headers | {"Warning": "214 UploadServer gunzipped", "Content-Length": str(length)}
    return Response(200, _pieces(gzip.open(path), 0, length), headers, length)


def _span(header: str, size: int) -> tuple[int, int] | None:
    """Start and length of the requested range; None when no byte lies in it."""
    found = _RANGE.fullmatch(header.strip())
    if not found:
        return 0, size
    first, last, suffix = found.groups()
    if suffix is not None:
        length = min(int(suffix), size)
        return (size - length, length) if length else None
    start = int(first)
    end = min(int(last), size - 1) if last else size - 1
    if start >= size or end < start:
        return None
    return start, end - start + 1


def _pieces(file: IO[bytes] | gzip.GzipFile, start: int, length: int) -> Iterator[bytes]:
    with file:
        file.seek(start)
        while length > 0:
            chunk = file.read(min(CHUNK, length))
            if not chunk:
                raise ConnectionError("the content file is shorter than its record says")
            length -= len(chunk)
            yield chunk
