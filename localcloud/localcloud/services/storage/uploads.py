"""Uploads: in one request, or resumable over any number of them.

Each ends in `versions.Write`, which makes the bytes the object's live version.
"""

import os
import re
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path
from urllib.parse import urlencode
from weakref import WeakValueDictionary

from localcloud.core import body as schema
from localcloud.core.call import Call, Json, Principal, Request, Response, Stream, parse_json
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import document
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.storage import api, records, versions
from localcloud.services.storage.versions import Contents, Digest, Hashes, Write


@api.API.method("objects.insert")
def _insert(cloud: Cloud, call: Call) -> Json | Response | None:
    headers = call.request.headers
    if call.arg("upload_id"):
        return _proceed(cloud, call)
    kind = call.arg("uploadType") or headers.get("X-Goog-Upload-Protocol", "")
    if not call.upload or kind not in ("media", "multipart", "resumable"):
        raise invalid(
            "objects.insert takes the object's bytes at /upload/storage/v1/ with the uploadType "
            f"'media', 'multipart' or 'resumable', not '{kind}'."
        )
    # The permission depends on the object's name, which may come in the body: Write.check asks.
    api.refuse_unserved(call)
    records.require_bucket(cloud, call.params["bucket"])
    if kind == "media":
        sent = {"contentType": "Content-Type", "contentEncoding": "Content-Encoding"}
        body = {field: headers[name] for field, name in sent.items() if headers.get(name)}
        write = _write(call, body)
        return records.object_resource(write.take(cloud, versions.chunks_of(call.request.stream)))
    if kind == "multipart":
        related = RelatedBody(headers.get("Content-Type", ""), call.request.stream)
        write = _write(call, _object(call, related.metadata, related.content_type))
        return records.object_resource(write.take(cloud, related.chunks()))
    body = parse_json(call.request.read())
    return _start(cloud, call, _write(call, _object(call, body, headers.get(_TYPE, ""))))


def _object(call: Call, body: Json, content_type: str) -> Json:
    """Return an object resource that came inside an upload, which the dispatcher has not seen."""
    known = document(call.method.api, call.method.version)
    problems = schema.schema_problems(known, "Object", body)
    if problems:
        raise ApiError(400, "\n".join(problems))
    return (
        body
        if body.get("contentType") or not content_type
        else body | {"contentType": content_type}
    )


def _write(call: Call, body: Json) -> Write:
    name, bucket = call.arg("name"), call.params["bucket"]
    if call.arg("contentEncoding"):
        body = body | {"contentEncoding": call.arg("contentEncoding")}
    for field, expected in (("name", name), ("bucket", bucket)):
        if expected and body.get(field) and body[field] != expected:
            raise invalid(f"Value '{body[field]}' in content does not agree with '{expected}'.")
    promised = Hashes(body.get("md5Hash") or "", body.get("crc32c") or "")
    hashes = promised | versions.header_hashes(call.request)
    conditions = api.Conditions.of(call)
    return Write(bucket, name or body.get("name") or "", call.principal, body, conditions, hashes)


# Resumable uploads (cloud.google.com/storage/docs/performing-resumable-uploads). A session is a
# record in the store and a file with the bytes so far, so it survives a restart of the emulator.

LIFETIME = 7 * 86400.0
"""Seconds after which Google forgets a session."""
# What Google keeps of an interrupted request is a multiple of this, the smallest chunk: 256 KiB.
_QUANTUM = 1 << 18
_TYPE, _LENGTH = "X-Upload-Content-Type", "X-Upload-Content-Length"
_PATH = r"/(?:resumable/)?upload/storage/v1/b/(?P<bucket>[^/]+)/o"
# By upload: a client that gave up on an answer may send its bytes again while the first request is
# still being written. An entry goes when no request holds its lock any longer.
_LOCKS: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


def _start(cloud: Cloud, call: Call, write: Write) -> Response:
    """Open a session; its address is in the Location header."""
    write.check(cloud)
    length = call.request.headers.get(_LENGTH, "")
    if length and not length.isdigit():
        raise invalid(f"Invalid value for {_LENGTH}: '{length}'.")
    upload = uuid.uuid4().hex
    record: Record = {
        "bucket": write.bucket,
        "name": write.name,
        "member": write.principal.member,
        "scopes": sorted(write.principal.scopes),
        "body": write.body,
        "conditions": asdict(write.conditions),
        "hashes": asdict(write.hashes),
        "total": int(length) if length else None,
        "created": cloud.clock.now(),
        "generation": None,
    }
    with versions.disk_errors():
        Contents(cloud).upload_path(upload).touch()
    cloud.store.put(records.UPLOAD, upload, record)
    query = urlencode(call.request.query, doseq=True)
    location = f"{call.base_url}{call.request.path}?{query}&upload_id={upload}"
    return Response(200, headers={"Location": location, "X-GUploader-UploadID": upload})


@api.API.raw("PUT", _PATH, like="objects.insert", hosts=api.HOSTS, upload=True)
def _proceed(cloud: Cloud, call: Call) -> Json | Response:
    """Take the next bytes of a session, or tell how many came so far.

    Its URL is a capability: no permission is checked, as Google's page warns.
    """
    upload = call.arg("upload_id")
    lock = _LOCKS.setdefault(upload, threading.Lock())
    with lock:
        record = _require_session(cloud, upload)
        if record["generation"] is not None:
            found = records.require(cloud, record["bucket"], record["name"], record["generation"])
            return records.object_resource(found)
        return _take(cloud, call, upload, record)


@api.API.raw("DELETE", _PATH, like="objects.insert", hosts=api.HOSTS, upload=True)
def cancel(cloud: Cloud, call: Call) -> Response:
    """Cancel a session; Google answers 499 on success."""
    upload = call.arg("upload_id")
    _require_session(cloud, upload)
    _discard(cloud, upload)
    return Response(499)


def _discard(cloud: Cloud, upload: str) -> None:
    cloud.store.delete(records.UPLOAD, upload)
    Contents(cloud).upload_path(upload).unlink(missing_ok=True)


def forget(cloud: Cloud, bucket: str) -> None:
    """Delete all sessions of a bucket."""
    for upload, record in cloud.store.items(records.UPLOAD):
        if record["bucket"] == bucket:
            _discard(cloud, upload)


def expire(cloud: Cloud) -> int:
    """Discard sessions that Google would have forgotten; return how many were unfinished.

    A finished one stays for its week, too: a client that lost the last answer asks for it again.
    """
    unfinished = 0
    for upload, record in cloud.store.items(records.UPLOAD):
        if record["created"] + LIFETIME <= cloud.clock.now():
            _discard(cloud, upload)
            unfinished += record["generation"] is None
    return unfinished


def _require_session(cloud: Cloud, upload: str) -> Record:
    missing = ApiError(404, f"No such upload: {upload or 'the upload_id is missing'}")
    record = cloud.store.load(records.UPLOAD, upload, missing)
    if record["created"] + LIFETIME < cloud.clock.now():
        raise ApiError(410, f"The upload {upload} has expired: it was not finished in a week.")
    return record


def _take(cloud: Cloud, call: Call, upload: str, record: Record) -> Json | Response:
    # The one who opened the session counts as the writer: its URL may be handed on.
    path = Contents(cloud).upload_path(upload)
    content = ContentRange.of(call.request, record["total"])
    digest = None if content.first is None else _append(path, call.request.stream, content)
    if not content.complete(path.stat().st_size):
        return _incomplete(call, path.stat().st_size)
    write = Write(
        bucket=record["bucket"],
        name=record["name"],
        principal=Principal(record["member"], frozenset(record["scopes"])),
        body=record["body"],
        conditions=api.Conditions(**record["conditions"]),
        hashes=Hashes(**record["hashes"]) | versions.header_hashes(call.request),
    )
    try:
        version = write.finish(cloud, path, (digest or _digest_of(path)).result())
    except ApiError as error:
        # A refusal is final; after a full disk the same request may succeed.
        if error.code < 500:
            _discard(cloud, upload)
        raise
    cloud.store.put(records.UPLOAD, upload, record | {"generation": version.generation})
    return records.object_resource(version)


def _append(path: Path, stream: Stream, content: "ContentRange") -> Digest | None:
    """Write the request's bytes; return their digest if nothing came before them.

    Google keeps what came before a connection broke; so does this, and cuts it to whole quanta.
    """
    first = position = content.first or 0
    size = path.stat().st_size
    if first > size:
        raise invalid(
            "Invalid request.  According to the Content-Range header, the upload offset is "
            f"{first} byte(s), which exceeds already uploaded size of {size} byte(s)."
        )
    digest = Digest()
    try:
        with versions.disk_errors(), path.open("r+b") as file:
            file.seek(size)
            for chunk in versions.chunks_of(stream):
                digest.update(chunk)
                # After a lost answer a client sends the same bytes again.
                file.write(chunk[max(0, size - position) :])
                position += len(chunk)
        content.check_length(position - first)
    except (OSError, ApiError):
        _truncate(path)
        raise
    if not content.complete(path.stat().st_size):
        _truncate(path)
    return None if size else digest


def _truncate(path: Path) -> None:
    """Cut an unfinished upload to whole quanta, as Google does."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.truncate(size - size % _QUANTUM)


def _digest_of(path: Path) -> Digest:
    digest = Digest()
    with path.open("rb") as file:
        for chunk in versions.chunks_of(file):
            digest.update(chunk)
    return digest


def _incomplete(call: Call, size: int) -> Response:
    headers = {"Range": f"bytes=0-{size - 1}"} if size else {}
    # Clients whose HTTP library takes a 308 for a redirect ask for another status.
    if call.request.headers.get("X-GUploader-No-308", "").lower() == "yes":
        return Response(200, headers=headers | {"X-HTTP-Status-Code-Override": "308"})
    return Response(308, headers=headers)


_HEADER = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+|\*)|\*)/(?P<total>\d+|\*)")


@dataclass(frozen=True)
class ContentRange:
    """Which bytes of the whole a request brings.

    Attributes:
        first: None when it brings none and only asks for the upload's progress.
        last: None when the request's length decides.
        total: None when the client doesn't know it yet.
        whole: the request brings everything.
    """

    first: int | None = None
    last: int | None = None
    total: int | None = None
    whole: bool = False

    @classmethod
    def of(cls, request: Request, known: int | None) -> "ContentRange":
        """Return the range of a request to a session that was started with `known` bytes in all."""
        header = request.headers.get("Content-Range", "").strip()
        if not header:
            return cls(first=0, whole=True)
        unreadable = invalid(f"Failed to parse Content-Range header '{header}'.")
        found = _HEADER.fullmatch(header)
        if not found:
            raise unreadable
        values = found.group("first", "last", "total")
        first, last, total = (int(each) if each and each != "*" else None for each in values)
        backwards = first is not None and last is not None and last < first
        if backwards or (last is not None and total is not None and last >= total):
            raise unreadable
        if total is not None and known is not None and total != known:
            raise invalid(
                f"Invalid request.  The Content-Range header says {total} byte(s) in all, but the "
                f"upload was started with {known} byte(s)."
            )
        return cls(first, last, total)

    def complete(self, size: int) -> bool:
        """Return whether an upload with `size` bytes so far has all of them.

        A client that does not know the total at first says it with its last request.
        """
        return self.whole or (self.total is not None and size >= self.total)

    def check_length(self, length: int) -> None:
        """Refuse a request with another number of bytes than it announced."""
        if self.first is None or self.last is None:
            return
        announced = self.last + 1 - self.first
        if length != announced:
            raise invalid(
                f"Invalid request.  The Content-Range header announces {announced} byte(s), but "
                f"{length} byte(s) came."
            )


_HEAD_LIMIT = 1 << 20


class RelatedBody:
    """Reads the two parts of a `multipart/related` upload; 400 for any other body.

    The standard library's parser would hold the whole object in memory. Here the first part is
    read at once, and the second passes in chunks.
    """

    def __init__(self, content_type: str, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        header = Message()
        header["Content-Type"] = content_type
        # Some clients put the boundary between single quotes, which the parser leaves alone.
        boundary = str(header.get_param("boundary", "")).strip("'")
        if header.get_content_type() != "multipart/related" or not boundary:
            raise invalid(f"Multipart upload with the Content-Type '{content_type}'.")
        self._mark = b"--" + boundary.encode()
        first = self._line()
        if first.rstrip() != self._mark:
            raise invalid("Multipart upload that does not begin with its boundary.")
        # Google's own command line tools end lines with a line feed alone.
        self._end = b"\r\n" if first.endswith(b"\r\n") else b"\n"
        self._headers()
        text = bytearray()
        while not (line := self._line()).startswith(self._mark):
            text += line
        self.metadata = parse_json(bytes(text))
        self.content_type = self._headers().get("Content-Type", "")
        """The Content-Type of the second part, or the empty string."""

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the second part."""
        mark = self._end + self._mark
        while (found := self._buffer.find(mark)) < 0:
            # Keep back what may be the beginning of the boundary until more bytes come.
            ready = len(self._buffer) - len(mark) + 1
            if ready > 0:
                yield bytes(self._buffer[:ready])
                del self._buffer[:ready]
            self._more()
        if found:
            yield bytes(self._buffer[:found])

    def _headers(self) -> Message:
        text = bytearray()
        while (line := self._line()).strip():
            text += line
        return BytesHeaderParser().parsebytes(bytes(text))

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                raise invalid(f"Multipart upload with more than {_HEAD_LIMIT} bytes of metadata.")
            self._more()
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line

    def _more(self) -> None:
        chunk = self._stream.read(versions.CHUNK)
        if not chunk:
            raise invalid("Multipart upload that ends without its closing boundary.")
        self._buffer += chunk
