"""Answers one gRPC call: its frame, its method, and its status.

Source: github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md and doc/statuscodes.md.
"""

from __future__ import annotations

import base64
import io
import logging
import struct
from collections.abc import Callable
from urllib.parse import quote

from localcloud.core.call import Request, Response
from localcloud.core.errors import RPC_CODE, ApiError
from localcloud.server.http2 import Headers, Reply

log = logging.getLogger(__name__)

Answer = Callable[[Request], Response]
Trailers = list[tuple[str, str]]
_PREFIX = struct.Struct(">?I")
_TYPE = "application/grpc"
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_MISSING = (
    "the local cloud answers gRPC with Google's own messages, which are not installed beside it: "
    "pip install 'tpu-stack-localcloud[grpc]', and start it again"
)


def answer(host: str, headers: Headers, body: bytes, apis: Answer) -> Reply:
    """Return the reply to a request that came by HTTP/2; `apis` answers REST calls.

    Raises:
        ConnectionError: when there is to be no answer.
    """
    if not headers.get("content-type", "").startswith(_TYPE):
        return Reply([(":status", "415")], b"", [])
    begin = [(":status", "200"), ("content-type", _TYPE)]
    try:
        told, trailers = _told(host, headers, body, apis)
    except ConnectionError:
        raise
    except Exception as error:
        log.exception("gRPC %s failed", headers.get(":path"))
        message = f"the local cloud failed: {type(error).__name__}: {error}"
        told, trailers = b"", _trailers(ApiError(500, message))
    return Reply(begin, told, trailers)


def _told(host: str, headers: Headers, body: bytes, apis: Answer) -> tuple[bytes, Trailers]:
    """Return the answer's body and trailers."""
    try:
        message = _message(host, headers, _unframed(body), apis)
    except ApiError as error:
        return b"", _trailers(error)
    return _PREFIX.pack(False, len(message)) + message, [("grpc-status", "0")]


def _unframed(body: bytes) -> bytes:
    """Return the one message of a unary call."""
    if len(body) < _PREFIX.size or _PREFIX.unpack_from(body)[1] != len(body) - _PREFIX.size:
        raise ApiError(500, "the call does not have exactly one message")
    if body[0]:
        raise ApiError(501, "the local cloud reads no compressed messages")
    return body[_PREFIX.size :]


def _message(host: str, headers: Headers, sent: bytes, apis: Answer) -> bytes:
    # Google's messages take half a second to load, which only callers of gRPC wait for.
    from localcloud.server.grpc import methods, transcoding

    path = headers.get(":path", "")
    try:
        rpc = methods.find(host, path)
    except ModuleNotFoundError:
        log.exception("gRPC %s", path)
        raise ApiError(501, _MISSING) from None
    if rpc is None:
        # Nobody knows it there either; it is logged and counted.
        apis(Request("POST", host, path, {}, headers, io.BytesIO(sent), len(sent)))
        raise ApiError(501, f"the local cloud speaks no gRPC at {host}{path}")
    request = transcoding.request_of(rpc, sent, host, headers)
    return transcoding.message_of(rpc, apis(request))


def _trailers(error: ApiError) -> Trailers:
    from google.protobuf.json_format import ParseDict
    from google.rpc import error_details_pb2, status_pb2

    code = RPC_CODE.get(error.status, RPC_CODE["UNKNOWN"])
    # The details are messages of this module, which must be loaded to be packed.
    assert error_details_pb2
    told = {"code": code, "message": error.message, "details": error.details}
    status = ParseDict(told, status_pb2.Status()).SerializeToString()
    return [
        ("grpc-status", str(code)),
        ("grpc-message", quote(error.message, safe=_PRINTABLE)),
        ("grpc-status-details-bin", base64.b64encode(status).decode()),
    ]
