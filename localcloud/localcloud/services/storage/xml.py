"""The part of the XML API that clients of the JSON API use too: GET, HEAD and PUT of an object.

TensorFlow reads objects this way, with the name percent-encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote
from xml.sax.saxutils import escape

from localcloud.core.call import Call, Response
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.services.storage import api, download, objects
from localcloud.services.storage.api import API
from localcloud.services.storage.conditions import Conditions
from localcloud.services.storage.content import chunks_of
from localcloud.services.storage.object_fields import header_hashes
from localcloud.services.storage.writes import Write

_HOSTS = ("storage.googleapis.com",)
_PATH = r"/(?!(?:storage|upload|resumable|download|batch)/)(?P<bucket>[^/]+)/(?P<object>.+)"
_CODES = {
    400: "InvalidArgument",
    401: "AuthenticationRequired",
    403: "AccessDenied",
    404: "NoSuchKey",
    412: "PreconditionFailed",
}
_FIELDS = {
    "Content-Type": "contentType",
    "Content-Encoding": "contentEncoding",
    "Content-Disposition": "contentDisposition",
    "Content-Language": "contentLanguage",
    "Cache-Control": "cacheControl",
}
_META = "x-goog-meta-"
Handler = Callable[[Cloud, Call], Response]


def _answered_in_xml(handler: Handler) -> Handler:
    """Answer errors as the XML API does."""

    def answer(cloud: Cloud, call: Call) -> Response:
        call.params = {name: unquote(value) for name, value in call.params.items()}
        try:
            return handler(cloud, call)
        except ApiError as error:
            code = _CODES.get(error.code, "InternalError")
            if "bucket does not exist" in error.message:
                code = "NoSuchBucket"
            text = (
                "<?xml version='1.0' encoding='UTF-8'?>"
                f"<Error><Code>{code}</Code><Message>{escape(error.message)}</Message></Error>"
            )
            headers = {"Content-Type": "application/xml; charset=UTF-8"}
            return Response(error.code, text.encode(), headers)

    return answer


@API.raw("GET", _PATH, like="objects.get", hosts=_HOSTS)
@API.raw("HEAD", _PATH, like="objects.get", hosts=_HOSTS)
@_answered_in_xml
def get(cloud: Cloud, call: Call) -> Response:
    """Return an object's bytes, or only the headers."""
    bucket, name = call.params["bucket"], call.params["object"]
    api.require(cloud, call.principal, bucket, "storage.objects.get", name)
    with cloud.store.locked():
        version = objects.find(cloud, call)
        tag = download.md5_etag(version)
        if call.request.headers.get("If-None-Match", "") == tag:
            return Response(304, headers={"ETag": tag})
        return download.media(cloud, version, call.request, tag)


@API.raw("PUT", _PATH, like="objects.insert", hosts=_HOSTS, upload=True)
@_answered_in_xml
def put(cloud: Cloud, call: Call) -> Response:
    """Create or replace an object."""
    headers = call.request.headers
    body = {field: headers[name] for name, field in _FIELDS.items() if headers.get(name)}
    metadata = {
        name[len(_META) :].lower(): value
        for name, value in headers.items()
        if name.lower().startswith(_META)
    }
    write = Write(
        bucket=call.params["bucket"],
        name=call.params["object"],
        principal=call.principal,
        body=body | {"metadata": metadata} if metadata else body,
        conditions=Conditions(
            generation_match=_number(call, "x-goog-if-generation-match"),
            metageneration_match=_number(call, "x-goog-if-metageneration-match"),
        ),
        hashes=header_hashes(call.request),
    )
    version = write.take(cloud, chunks_of(call.request.stream))
    answer = download.media_headers(version, download.md5_etag(version))
    kept = {name: value for name, value in answer.items() if name == "ETag" or "goog" in name}
    return Response(200, headers=kept)


def _number(call: Call, header: str) -> int | None:
    value = call.request.headers.get(header, "")
    if value and not value.isdigit():
        raise ApiError(400, f"Invalid value for {header}: '{value}' is not an integer.")
    return int(value) if value else None
