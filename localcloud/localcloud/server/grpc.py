"""gRPC calls over HTTP/2, each answered as the REST call that it stands for.

A connection has one thread, since TLS bears no two at once, and answers its calls one by one: a
client that wants more at a time has more connections. Google's messages are imported late: they
take half a second to load and may not be installed. Sources: doc/PROTOCOL-HTTP2.md and
doc/statuscodes.md of github.com/grpc/grpc; the rules of google.api.http.
"""

import base64
import io
import json
import logging
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, get_args
from urllib.parse import quote

from google.api_core import path_template, rest_helpers
from google.protobuf import empty_pb2, json_format
from google.protobuf.message import DecodeError, Message
from h2 import config, events, exceptions
from h2.connection import H2Connection
from requests.structures import CaseInsensitiveDict

from localcloud import data
from localcloud.core import ApiError, Request, Response, errors, invalid

Headers = Mapping[str, str]
"""With HTTP/2's pseudo-headers, such as `:path`."""
_CHUNK = 1 << 16
# Seconds without a byte after which a connection is given up.
_IDLE = 600
log = logging.getLogger(__name__)
Answer = Callable[[Request], Response]
Trailers = list[tuple[str, str]]
_PREFIX = struct.Struct(">?I")
_TYPE = "application/grpc"
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_MISSING = (
    "the local cloud answers gRPC with Google's own messages, which are not installed: "
    "pip install 'tpu-stack-localcloud[grpc]', and start it again"
)
Rule = dict[str, str]
"""A google.api.http rule: `method`, `uri` and, for a call with a body, `body`."""


@dataclass
class Reply:
    """What is answered to a request; a body without trailers ends the answer.

    All of it is known before the first byte goes: no API here streams.
    """

    headers: list[tuple[str, str]]
    body: bytes
    trailers: list[tuple[str, str]]


@dataclass
class _Stream:
    """A call whose request is still coming, or whose reply the client doesn't take yet."""

    headers: Headers
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reply: Reply | None = None


class Http2:
    """One connection, on which any number of calls (streams) are open at once.

    Args:
        connection: on which the client has chosen HTTP/2.
        answer: from a request's headers and body; a ConnectionError breaks the connection off.
    """

    def __init__(self, connection: ssl.SSLSocket, answer: Callable[[Headers, bytes], Reply]):
        self._socket = connection
        self._answer = answer
        self._protocol = H2Connection(
            config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self._streams: dict[int, _Stream] = {}

    def serve(self) -> None:
        """Answer requests until the client goes away or says nothing for long.

        Raises OSError: when the client breaks off, or is to get no answer.
        """
        self._socket.settimeout(_IDLE)
        self._protocol.initiate_connection()
        received: list[events.Event] = []
        while not any(isinstance(event, events.ConnectionTerminated) for event in received):
            self._send()
            data = self._socket.recv(_CHUNK)
            try:
                received = self._protocol.receive_data(data)
            except exceptions.ProtocolError:
                # What it says to the client about that is still to be sent.
                break
            for event in received:
                self._handle(event)
            if not data:
                break
        # Drop further answers: h2 refuses to write to a connection that has ended.
        self._socket.sendall(self._protocol.data_to_send())

    def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            headers = CaseInsensitiveDict({_text(k): _text(v) for k, v in event.headers})
            self._streams[event.stream_id] = _Stream(headers)
        elif isinstance(event, events.DataReceived):
            self._protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._streams[event.stream_id].body += event.data
        elif isinstance(event, events.StreamEnded):
            # Answered in `_send`: what came with it may take the request back.
            self._streams[event.stream_id].ended = True
        elif isinstance(event, events.StreamReset):
            self._streams.pop(event.stream_id, None)

    def _send(self) -> None:
        for number, stream in list(self._streams.items()):
            if stream.ended and self._written(number, stream):
                del self._streams[number]
            # Now, since the next call may take long, or break the connection off.
            self._socket.sendall(self._protocol.data_to_send())
        self._socket.sendall(self._protocol.data_to_send())

    def _written(self, number: int, stream: _Stream) -> bool:
        """Write as much of a reply as the client takes now; return whether it was all."""
        if stream.reply is None:
            stream.reply = self._answer(stream.headers, bytes(stream.body))
            self._protocol.send_headers(number, stream.reply.headers)
        reply = stream.reply
        while reply.body:
            window = self._protocol.local_flow_control_window(number)
            size = min(window, self._protocol.max_outbound_frame_size)
            if size <= 0:
                return False
            self._protocol.send_data(number, reply.body[:size])
            reply.body = reply.body[size:]
        if reply.trailers:
            self._protocol.send_headers(number, reply.trailers, end_stream=True)
        else:
            self._protocol.end_stream(number)
        return True


def _text(value: str | bytes) -> str:
    # h2 gives text for some headers and bytes for others, by its version.
    return value if isinstance(value, str) else value.decode()


def answer(host: str, headers: Headers, body: bytes, apis: Answer) -> Reply:
    """Return the reply to a request that came by HTTP/2; `apis` answers REST calls.

    Raises ConnectionError: when there is to be no answer.
    """
    if not headers.get("content-type", "").startswith(_TYPE):
        return Reply([(":status", "415")], b"", [])
    # An error of the call is in the trailers: for HTTP every call of gRPC succeeds.
    begin = [(":status", "200"), ("content-type", _TYPE)]
    try:
        try:
            message = _message(host, headers, _unframed(body), apis)
        except ApiError as error:
            return Reply(begin, b"", _trailers(error))
        return Reply(begin, _PREFIX.pack(False, len(message)) + message, [("grpc-status", "0")])
    except ConnectionError:
        raise
    except Exception as error:
        log.exception("gRPC %s failed", headers.get(":path"))
        text = f"the local cloud failed: {type(error).__name__}: {error}"
        return Reply(begin, b"", _trailers(ApiError(500, text)))


def _unframed(body: bytes) -> bytes:
    """Return the one message of a unary call."""
    if len(body) < _PREFIX.size or _PREFIX.unpack_from(body)[1] != len(body) - _PREFIX.size:
        raise ApiError(500, "the call does not have exactly one message")
    if body[0]:
        raise ApiError(501, "the local cloud reads no compressed messages")
    return body[_PREFIX.size :]


def _message(host: str, headers: Headers, sent: bytes, apis: Answer) -> bytes:
    path = headers.get(":path", "")
    try:
        rpc = find_rpc(host, path)
    except ModuleNotFoundError:
        log.exception("gRPC %s", path)
        raise ApiError(501, _MISSING) from None
    if rpc is None:
        # REST has no such method either: it is logged and counted.
        apis(Request("POST", host, path, {}, headers, io.BytesIO(sent), len(sent)))
        raise ApiError(501, f"the local cloud speaks no gRPC at {host}{path}")
    request = request_of(rpc, sent, host, headers)
    return message_of(rpc, apis(request))


def _trailers(error: ApiError) -> Trailers:
    """Return an error's code, its percent-encoded message, and all of it as a google.rpc.Status."""
    from google.rpc import error_details_pb2, status_pb2

    code = errors.RPC_CODE.get(error.status, errors.RPC_CODE["UNKNOWN"])
    # The details are messages of this module, which must be loaded to be packed.
    assert error_details_pb2
    content = {"code": code, "message": error.message, "details": error.details}
    status = json_format.ParseDict(content, status_pb2.Status()).SerializeToString()
    return [
        ("grpc-status", str(code)),
        ("grpc-message", quote(error.message, safe=_PRINTABLE)),
        ("grpc-status-details-bin", base64.b64encode(status).decode()),
    ]


@dataclass(frozen=True)
class Rpc:
    """A method of a service.

    Attributes:
        rules: of which the first whose path fits a request is its REST call.
        request: the message that is sent.
        response: the message that is answered.
    """

    rules: Sequence[Rule]
    request: type[Message]
    response: type[Message]


def find_rpc(host: str, path: str) -> Rpc | None:
    """Return the method at a path such as `/google.cloud.tpu.v2.Tpu/GetNode`, or None.

    Raises:
        ModuleNotFoundError: when the host speaks gRPC and Google's clients are not installed.
    """
    known = data.load("grpc")["services"]
    mine = [service for service, entry in known.items() if entry["host"] == host]
    if not mine or path.count("/") != 2:
        return None
    _, service, method = path.split("/")
    rpc = methods(service if service in mine else mine[0]).get(method)
    package = service.rpartition(".")[0]
    return rpc if rpc and rpc.request.DESCRIPTOR.file.package == package else None


@cache
def methods(service: str) -> dict[str, Rpc]:
    """Return the methods of a service, and those that its host's versions share, by name.

    Raises:
        ModuleNotFoundError: when Google's client is not installed.
    """
    for module in data.load("grpc")["inside"]:
        import_module(module)
    name = service.rpartition(".")[2]
    entry = data.load("grpc")["services"][service]
    transport = getattr(import_module(entry["transports"] + ".grpc"), f"{name}GrpcTransport")
    rules = _rules(service)
    found = {}
    for attribute, value in vars(transport).items():
        types = _types(value)
        method = "".join(word.capitalize() for word in attribute.split("_"))
        if types is not None and method in rules:
            found[method] = Rpc(rules[method], *types)
    return found


def _rules(service: str) -> dict[str, list[Rule]]:
    """Return the rules of a service by method; those of a version without a client by another's."""
    entry = data.load("grpc")["services"][service]
    if "like" not in entry:
        return _annotated(service)
    version, other = (name.split(".")[-2] for name in (service, entry["like"]))
    found = {method: [rule] for method, rule in entry["rules"].items()}
    for method, rules in _annotated(entry["like"]).items():
        moved = [
            rule | {"uri": rule["uri"].replace(f"/{other}/", f"/{version}/")} for rule in rules
        ]
        found.setdefault(method, moved)
    return found


def _annotated(service: str) -> dict[str, list[Rule]]:
    """Return the rules in a client's REST transport, where each method has a class of its own."""
    module = data.load("grpc")["services"][service]["transports"] + ".rest_base"
    base = getattr(import_module(module), f"_Base{service.rpartition('.')[2]}RestTransport")
    return {
        name.removeprefix("_Base"): held._get_http_options()
        for name, held in vars(base).items()
        if hasattr(held, "_get_http_options")
    }


def _types(member: Any) -> tuple[type[Message], type[Message]] | None:
    """Return the messages of a transport's property, which is annotated as `[request] -> response`.

    None stands for other members of the transport.
    """
    getter = member.fget if isinstance(member, property) else None
    types = get_args(getattr(getter, "__annotations__", {}).get("return"))
    if len(types) != 2:
        return None
    (request,), response = types
    return _class_of(request), _class_of(response)


def _class_of(type_: Any) -> Any:
    """Return the message class behind a type of proto-plus, or behind an annotation of nothing."""
    if type_ is type(None):
        return empty_pb2.Empty
    return type_.pb() if hasattr(type_, "pb") else type_


def request_of(rpc: Rpc, sent: bytes, host: str, headers: Headers) -> Request:
    """Return the REST call that a message stands for.

    Raises ApiError: 400 when the bytes are no such message or no rule's path fits it.
    """
    message = rpc.request()
    try:
        message.ParseFromString(sent)
        call = path_template.transcode(rpc.rules, message)
    except (DecodeError, ValueError) as error:
        raise invalid(str(error)) from None
    query: dict[str, list[str]] = {}
    for name, value in rest_helpers.flatten_query_params(_json(call["query_params"]), strict=True):
        query.setdefault(name, []).append(value)
    body = json.dumps(_json(call["body"])).encode() if "body" in call else b""
    verb, path = call["method"].upper(), quote(call["uri"], safe="/:")
    return Request(verb, host, path, query, headers, io.BytesIO(body), len(body))


def message_of(rpc: Rpc, response: Response) -> bytes:
    """Return the message in a response; ApiError the error, when the response is one."""
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    content = json.loads(body or b"{}")
    if response.status >= 400:
        error = content["error"]
        about = {"status": error["status"], "details": error.get("details")}
        raise ApiError(error["code"], error["message"], **about)
    # A field that is newer than the client's message is left out, as its REST transport does.
    message = json_format.ParseDict(content, rpc.response(), ignore_unknown_fields=True)
    answered: bytes = message.SerializeToString()
    return answered


def _json(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = json_format.MessageToDict(message)
    return shown
