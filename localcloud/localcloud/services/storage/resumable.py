"""Resumable uploads: a session that takes an object's bytes over any number of requests.

A session is a record in the store and a file with what came so far, so it outlives the emulator.
Protocol: cloud.google.com/storage/docs/performing-resumable-uploads.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlencode
from weakref import WeakValueDictionary

from localcloud.core.call import Call, Json, Principal, Response, Stream
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.storage import records, render
from localcloud.services.storage.api import API, HOSTS
from localcloud.services.storage.conditions import Conditions
from localcloud.services.storage.content import Contents, Digest, Hashes, chunks_of, disk_errors
from localcloud.services.storage.content_range import ContentRange
from localcloud.services.storage.object_fields import header_hashes
from localcloud.services.storage.writes import Write

LIFETIME = 7 * 86400.0
"""Seconds after which Google forgets a session."""
_QUANTUM = 1 << 18
_PATH = r"/(?:resumable/)?upload/storage/v1/b/(?P<bucket>[^/]+)/o"
_LOCKS: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


def start(cloud: Cloud, call: Call, write: Write) -> Response:
    """Open a session; its address is in the Location header."""
    write.check(cloud)
    length = call.request.headers.get("X-Upload-Content-Length", "")
    if length and not length.isdigit():
        raise invalid(f"Invalid value for X-Upload-Content-Length: '{length}'.")
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
    with disk_errors():
        Contents(cloud).upload_path(upload).touch()
    cloud.store.put(records.UPLOAD, upload, record)
    query = urlencode([(k, v) for k, vs in call.request.query.items() for v in vs])
    location = f"{call.base_url}{call.request.path}?{query}&upload_id={upload}"
    return Response(200, headers={"Location": location, "X-GUploader-UploadID": upload})


@API.raw("PUT", _PATH, like="objects.insert", hosts=HOSTS, upload=True)
def put(cloud: Cloud, call: Call) -> Json | Response:
    """Take the next bytes of a session; its address is all the authority that this takes."""
    return proceed(cloud, call)


def proceed(cloud: Cloud, call: Call) -> Json | Response:
    """Take the next bytes of a session, or tell how many came so far."""
    upload = call.arg("upload_id")
    lock = _LOCKS.setdefault(upload, threading.Lock())
    with lock:
        record = _require(cloud, upload)
        if record["generation"] is not None:
            found = records.require(cloud, record["bucket"], record["name"], record["generation"])
            return render.object_resource(found)
        return _take(cloud, call, upload, record)


@API.raw("DELETE", _PATH, like="objects.insert", hosts=HOSTS, upload=True)
def cancel(cloud: Cloud, call: Call) -> Response:
    """Give a session up; Google answers with this status when it worked."""
    upload = call.arg("upload_id")
    _require(cloud, upload)
    discard(cloud, upload)
    return Response(499)


def discard(cloud: Cloud, upload: str) -> None:
    """Forget a session and its bytes."""
    cloud.store.delete(records.UPLOAD, upload)
    Contents(cloud).upload_path(upload).unlink(missing_ok=True)


def forget(cloud: Cloud, bucket: str) -> None:
    """Forget all sessions of a bucket that goes."""
    for upload, record in cloud.store.items(records.UPLOAD):
        if record["bucket"] == bucket:
            discard(cloud, upload)


def expire(
    cloud: Cloud,
    age: float,
    bucket: str = "",
    matches: Callable[[str], bool] = lambda name: True,
) -> int:
    """Give up the sessions that are `age` seconds old, of one bucket or of all.

    Returns:
        how many were unfinished.
    """
    unfinished = 0
    for upload, record in cloud.store.items(records.UPLOAD):
        if bucket not in ("", record["bucket"]) or not matches(record["name"]):
            continue
        finished = record["generation"] is not None
        if record["created"] + (LIFETIME if finished else age) <= cloud.clock.now():
            discard(cloud, upload)
            unfinished += not finished
    return unfinished


def _require(cloud: Cloud, upload: str) -> Record:
    record = cloud.store.get(records.UPLOAD, upload)
    if record is None:
        raise ApiError(404, f"No such upload: {upload or 'the upload_id is missing'}")
    if record["created"] + LIFETIME < cloud.clock.now():
        raise ApiError(410, f"The upload {upload} has expired: it was not finished in a week.")
    return record


def _take(cloud: Cloud, call: Call, upload: str, record: Record) -> Json | Response:
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
        conditions=Conditions(**record["conditions"]),
        hashes=Hashes(**record["hashes"]) | header_hashes(call.request),
    )
    try:
        version = write.finish(cloud, path, (digest or _digest_of(path)).result())
    except ApiError as error:
        if error.code < 500:
            discard(cloud, upload)
        raise
    cloud.store.put(records.UPLOAD, upload, record | {"generation": version.generation})
    return render.object_resource(version)


def _append(path: Path, stream: Stream, content: ContentRange) -> Digest | None:
    """Write the request's bytes; their digest if nothing came before them."""
    first = position = content.first or 0
    size = path.stat().st_size
    if first > size:
        raise invalid(
            "Invalid request.  According to the Content-Range header, the upload offset is "
            f"{first} byte(s), which exceeds already uploaded size of {size} byte(s)."
        )
    digest = Digest()
    try:
        with disk_errors(), path.open("r+b") as file:
            file.seek(size)
            for chunk in chunks_of(stream):
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
        for chunk in chunks_of(file):
            digest.update(chunk)
    return digest


def _incomplete(call: Call, size: int) -> Response:
    headers = {"Range": f"bytes=0-{size - 1}"} if size else {}
    # Clients whose HTTP library takes a 308 for a redirect ask for another status.
    if call.request.headers.get("X-GUploader-No-308", "").lower() == "yes":
        return Response(200, headers=headers | {"X-HTTP-Status-Code-Override": "308"})
    return Response(308, headers=headers)
