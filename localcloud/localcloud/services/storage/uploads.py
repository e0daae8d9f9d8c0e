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
from typing import IO
from urllib.parse import urlencode
from weakref import WeakValueDictionary

from localcloud.core import ApiError, Cloud, Record, body as schema, document, invalid
from localcloud.core.call import Call, Json, Principal, Request, Response, Stream, parse_json
from localcloud.services.storage import api, records, versions
from localcloud.services.storage.versions import Checksums, Contents, Hashes, Write


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
        body, content_type, content = _related(call.request)
        write = _write(call, _object(call, body, content_type))
        return records.object_resource(write.take(cloud, [content]))
    body = parse_json(call.request.read())
    return _start(cloud, call, _write(call, _object(call, body, headers.get(_TYPE, ""))))


def _object(call: Call, body: Json, content_type: str) -> Json:
    """Return an object resource that came inside an upload, which the dispatcher has not seen."""
    known = document(call.method.api, call.method.version)
    problems = schema.schema_problems(known, "Object", body)
    if problems:
        raise ApiError(400, "\n".join(problems))
    # What the resource itself says goes before the header.
    own = body.get("contentType") or content_type
    return body | {"contentType": own} if own else body


def _write(call: Call, body: Json) -> Write:
    name, bucket = call.arg("name"), call.params["bucket"]
    if call.arg("contentEncoding"):
        body = body | {"contentEncoding": call.arg("contentEncoding")}
    for field, expected in (("name", name), ("bucket", bucket)):
        if expected and body.get(field) and body[field] != expected:
            raise invalid(f"Value '{body[field]}' in content does not agree with '{expected}'.")
    # What the resource promises outweighs the headers.
    promised = Hashes(body.get("md5Hash") or "", body.get("crc32c") or "")
    hashes = promised | versions.header_hashes(call.request)
    conditions = api.Conditions.of(call)
    return Write(bucket, name or body.get("name") or "", call.principal, body, conditions, hashes)


# Resumable uploads (cloud.google.com/storage/docs/performing-resumable-uploads). A session is a
# record in the store and a file with the bytes so far, so it survives a restart of the emulator.

# What Google keeps of an interrupted request is a multiple of this, the smallest chunk: 256 KiB.
_QUANTUM = 1 << 18
_TYPE = "X-Upload-Content-Type"
_PATH = r"/(?:resumable/)?upload/storage/v1/b/(?P<bucket>[^/]+)/o"
# By upload: a client that gave up on an answer may send its bytes again while the first request is
# still being written. An entry goes when no request holds its lock any longer.
_LOCKS: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


def _start(cloud: Cloud, call: Call, write: Write) -> Response:
    """Open a session; its address is in the Location header."""
    write.check(cloud)
    upload = uuid.uuid4().hex
    record: Record = {
        "bucket": write.bucket,
        "name": write.name,
        "member": write.principal.member,
        "scopes": sorted(write.principal.scopes),
        "body": write.body,
        "conditions": asdict(write.conditions),
        "hashes": asdict(write.hashes),
        "created": cloud.clock.now(),
        "generation": None,
    }
    with versions.disk_errors():
        Contents(cloud).upload_path(upload).touch()
    cloud.store.put(records.UPLOAD, upload, record)
    query = urlencode(call.request.query, doseq=True)
    location = f"https://{call.request.host}{call.request.path}?{query}&upload_id={upload}"
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


def _require_session(cloud: Cloud, upload: str) -> Record:
    missing = ApiError(404, f"No such upload: {upload or 'the upload_id is missing'}")
    record = cloud.store.load(records.UPLOAD, upload, missing)
    if record["generation"] is None and not Contents(cloud).upload_path(upload).exists():
        # Its last step broke off when the bytes were in the bucket already.
        raise missing
    if record["created"] + versions.UPLOAD_LIFETIME < cloud.clock.now():
        raise ApiError(410, f"The upload {upload} has expired: it was not finished in a week.")
    return record


def _take(cloud: Cloud, call: Call, upload: str, record: Record) -> Json | Response:
    # The one who opened the session counts as the writer: its URL may be handed on.
    path = Contents(cloud).upload_path(upload)
    content = ContentRange.of(call.request)
    sums = None if content.first is None else _append(path, call.request.stream, content)
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
    if sums is None:
        with path.open("rb") as file:
            sums = versions.digest(versions.chunks_of(file))
    try:
        version = write.finish(cloud, path, sums)
    except ApiError as error:
        # A refusal is final; after a full disk the same request may succeed.
        if error.code < 500:
            versions.discard_upload(cloud, upload)
        raise
    cloud.store.put(records.UPLOAD, upload, record | {"generation": version.generation})
    return records.object_resource(version)


def _append(path: Path, stream: Stream, content: "ContentRange") -> Checksums | None:
    """Write the request's bytes; return their checksums if nothing came before them.

    Google keeps what came before a connection broke; so does this, and cuts it to whole quanta.
    """
    first = content.first or 0
    size = path.stat().st_size
    if first > size:
        raise invalid(
            "Invalid request.  According to the Content-Range header, the upload offset is "
            f"{first} byte(s), which exceeds already uploaded size of {size} byte(s)."
        )

    def written(file: IO[bytes]) -> Iterator[bytes]:
        position = first
        for chunk in versions.chunks_of(stream):
            # After a lost answer a client sends the same bytes again.
            file.write(chunk[max(0, size - position) :])
            position += len(chunk)
            yield chunk

    try:
        with versions.disk_errors(), path.open("r+b") as file:
            file.seek(size)
            sums = versions.digest(written(file))
    except (OSError, ApiError):
        _truncate(path)
        raise
    if not content.complete(path.stat().st_size):
        _truncate(path)
    return None if size else sums


def _truncate(path: Path) -> None:
    """Cut an unfinished upload to whole quanta, as Google does."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.truncate(size - size % _QUANTUM)


def _incomplete(call: Call, size: int) -> Response:
    headers = {"Range": f"bytes=0-{size - 1}"} if size else {}
    # Clients whose HTTP library takes a 308 for a redirect ask for another status.
    if call.request.headers.get("X-GUploader-No-308", "").lower() == "yes":
        return Response(200, headers=headers | {"X-HTTP-Status-Code-Override": "308"})
    return Response(308, headers=headers)


_HEADER = re.compile(r"bytes (?:(?P<first>\d+)-(?:\d+|\*)|\*)/(?P<total>\d+|\*)")


@dataclass(frozen=True)
class ContentRange:
    """Which bytes of the whole a request brings.

    Attributes:
        first: None when it brings none and only asks for the upload's progress.
        total: None when the client doesn't know it yet.
        whole: the request brings everything.
    """

    first: int | None = None
    total: int | None = None
    whole: bool = False

    @classmethod
    def of(cls, request: Request) -> "ContentRange":
        """Return the range of a request to a session; 400 for a header of another form."""
        header = request.headers.get("Content-Range", "").strip()
        if not header:
            return cls(first=0, whole=True)
        found = _HEADER.fullmatch(header)
        if not found:
            raise invalid(f"Failed to parse Content-Range header '{header}'.")
        first, total = found.group("first", "total")
        return cls(int(first) if first else None, None if total == "*" else int(total))

    def complete(self, size: int) -> bool:
        """Return whether an upload with `size` bytes so far has all of them.

        A client that does not know the total at first says it with its last request.
        """
        return self.whole or (self.total is not None and size >= self.total)


def _related(request: Request) -> tuple[Json, str, bytes]:
    """Return the object, the type and the bytes in a `multipart/related` body.

    It is read as a whole: clients send what is larger than some MiB by a resumable upload. The
    standard library's parser would change the line ends of the bytes.
    """
    header = Message()
    header["Content-Type"] = request.headers.get("Content-Type", "")
    # Some clients put the boundary between single quotes, which the parser leaves alone.
    boundary = str(header.get_param("boundary", "")).strip("'").encode()
    body = request.read()
    # Google's own command line tools end lines with a line feed alone.
    line_end = b"\r\n" if body.startswith(b"--" + boundary + b"\r\n") else b"\n"
    parts = (line_end + body).split(line_end + b"--" + boundary)
    if header.get_content_type() != "multipart/related" or len(parts) < 4 or not boundary:
        raise invalid("Multipart upload without two parts between its boundaries.")
    (_, _, text), (head, _, content) = (part.partition(2 * line_end) for part in parts[1:3])
    content_type = BytesHeaderParser().parsebytes(head.lstrip()).get("Content-Type", "")
    return parse_json(text), content_type, content
