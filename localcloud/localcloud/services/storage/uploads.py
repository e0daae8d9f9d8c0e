"""objects.insert: uploads in one request, and the start of resumable ones."""

from __future__ import annotations

from dataclasses import replace

from localcloud.core import body as schema
from localcloud.core.call import Call, Json, Response, parse_json
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import document
from localcloud.core.errors import ApiError, invalid
from localcloud.services.storage import encryption, records, render, resumable
from localcloud.services.storage.acl import refuse_acl
from localcloud.services.storage.api import API
from localcloud.services.storage.conditions import Conditions
from localcloud.services.storage.content import chunks_of
from localcloud.services.storage.multipart import RelatedBody
from localcloud.services.storage.object_fields import hashes, header_hashes
from localcloud.services.storage.writes import Write


@API.method("objects.insert")
def insert(cloud: Cloud, call: Call) -> Json | Response:
    """Create or replace an object."""
    if call.arg("upload_id"):
        return resumable.proceed(cloud, call)
    kind = call.arg("uploadType") or call.request.headers.get("X-Goog-Upload-Protocol", "")
    if not call.upload or kind not in ("media", "multipart", "resumable"):
        raise invalid(
            "objects.insert takes the object's bytes at /upload/storage/v1/ with the uploadType "
            f"'media', 'multipart' or 'resumable', not '{kind}'."
        )
    # The permission depends on the object's name, which may come in the body: Write.check asks.
    refuse_acl(call, records.require_bucket(cloud, call.params["bucket"]))
    if kind == "resumable":
        return resumable.start(cloud, call, _write(call, _body(call)))
    if kind == "media":
        return _media(cloud, call)
    return _multipart(cloud, call)


def _media(cloud: Cloud, call: Call) -> Json:
    headers = call.request.headers
    body = {
        field: headers[header]
        for field, header in (
            ("contentType", "Content-Type"),
            ("contentEncoding", "Content-Encoding"),
        )
        if headers.get(header)
    }
    write = _write(call, body)
    return render.object_resource(write.take(cloud, chunks_of(call.request.stream)))


def _multipart(cloud: Cloud, call: Call) -> Json:
    related = RelatedBody(call.request.headers.get("Content-Type", ""), call.request.stream)
    _check_object(call, related.metadata)
    body = related.metadata
    if related.content_type and not body.get("contentType"):
        body = body | {"contentType": related.content_type}
    return render.object_resource(_write(call, body).take(cloud, related.chunks()))


def _body(call: Call) -> Json:
    body = parse_json(call.request.read())
    _check_object(call, body)
    content_type = call.request.headers.get("X-Upload-Content-Type", "")
    if content_type and not body.get("contentType"):
        body["contentType"] = content_type
    return body


def _check_object(call: Call, body: object) -> None:
    problems = schema.schema_problems(
        document(call.method.api, call.method.version), "Object", body
    )
    if problems:
        raise ApiError(400, "\n".join(problems))


def _write(call: Call, body: Json) -> Write:
    encryption.refuse_key_in_call(call)
    encoding = call.arg("contentEncoding")
    if encoding:
        body = body | {"contentEncoding": encoding}
    for field, expected in (("name", call.arg("name")), ("bucket", call.params["bucket"])):
        if expected and body.get(field) and body[field] != expected:
            raise invalid(f"Value '{body[field]}' in content does not agree with '{expected}'.")
    write = Write(
        bucket=call.params["bucket"],
        name=call.arg("name") or body.get("name") or "",
        principal=call.principal,
        body=body,
        conditions=Conditions.of(call),
        hashes=hashes(body),
    )
    return replace(write, hashes=write.hashes | header_hashes(call.request))
