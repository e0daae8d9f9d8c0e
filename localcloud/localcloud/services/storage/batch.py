"""The batch endpoint: up to 100 calls in one `multipart/mixed` request.

Protocol: cloud.google.com/storage/docs/batch.
"""

from __future__ import annotations

import io
import uuid
from email.message import Message
from email.parser import BytesParser
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qs, urlsplit

from localcloud.core.call import Call, Request, Response
from localcloud.core.cloud import Cloud
from localcloud.core.dispatch import Dispatcher
from localcloud.core.errors import invalid
from localcloud.services.storage.api import API, HOSTS

_LIMIT = 100


@API.raw("POST", r"/batch/storage/v1/?", like="batch", hosts=HOSTS, upload=True)
def batch(cloud: Cloud, call: Call) -> Response:
    """Answer every call of the batch, in order."""
    head = f"Content-Type: {call.request.headers.get('Content-Type', '')}\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + call.request.read())
    if message.get_content_type() != "multipart/mixed" or not message.is_multipart():
        raise invalid("A batch is a multipart/mixed body of application/http parts.")
    parts = cast("list[Message]", message.get_payload())
    if len(parts) > _LIMIT:
        raise invalid(f"The batch has {len(parts)} calls; at most {_LIMIT} are allowed.")
    boundary = f"batch_{uuid.uuid4().hex}"
    dispatcher = Dispatcher(cloud, (API,))
    body = b"".join(
        f"--{boundary}\r\n".encode() + _answer(dispatcher, call.request, part) for part in parts
    )
    content_type = {"Content-Type": f"multipart/mixed; boundary={boundary}"}
    return Response(200, body + f"--{boundary}--\r\n".encode(), content_type)


def _answer(dispatcher: Dispatcher, outer: Request, part: Message) -> bytes:
    response = dispatcher.answer(_request(outer, part))
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    headers = response.headers | {"Content-Length": str(len(body))}
    lines = [
        "Content-Type: application/http",
        f"Content-ID: <response-{part.get('Content-ID', '').strip('<>')}>",
        "",
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        *(f"{name}: {value}" for name, value in headers.items()),
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body + b"\r\n"


def _request(outer: Request, part: Message) -> Request:
    """Return the call in a part; the batch's own authorization holds where the part has none."""
    payload = part.get_payload(decode=True)
    line, _, rest = (payload if isinstance(payload, bytes) else b"").lstrip().partition(b"\n")
    words = line.decode(errors="replace").split()
    if len(words) < 2:
        raise invalid(f"'{line.decode(errors='replace').strip()}' is no HTTP request line.")
    inner = BytesParser().parsebytes(rest)
    content = inner.get_payload(decode=True)
    body = content if isinstance(content, bytes) else b""
    target = urlsplit(words[1])
    if not inner.get("Authorization") and outer.headers.get("Authorization"):
        inner["Authorization"] = outer.headers["Authorization"]
    return Request(
        verb=words[0],
        host=outer.host,
        path=target.path,
        query=parse_qs(target.query, keep_blank_values=True),
        headers={name.title(): str(value) for name, value in inner.items()},
        stream=io.BytesIO(body),
        length=len(body),
    )
