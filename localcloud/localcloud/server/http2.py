"""HTTP/2, for clients that speak nothing else: those of gRPC.

One thread reads and writes a connection, since TLS bears no two at once; each request is answered
in a thread of its own.
"""

from __future__ import annotations

import queue
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from requests.structures import CaseInsensitiveDict

Headers = Mapping[str, str]
"""With HTTP/2's pseudo-headers, such as `:path`."""
_CHUNK = 1 << 16
# Seconds without a byte after which a connection is given up.
_IDLE = 600


@dataclass
class Reply:
    """What is answered to a request; a body without trailers ends the answer."""

    headers: list[tuple[str, str]]
    body: bytes
    trailers: list[tuple[str, str]]


@dataclass
class _Stream:
    headers: Headers
    body: bytearray = field(default_factory=bytearray)
    reply: Reply | None = None
    begun: bool = False


class Http2:
    """One connection.

    Args:
        connection: on which the client has chosen HTTP/2.
        answer: from a request's headers and body; a ConnectionError breaks the connection off.
    """

    def __init__(self, connection: ssl.SSLSocket, answer: Callable[[Headers, bytes], Reply]):
        self._socket = connection
        self._answer = answer
        self._protocol = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._streams: dict[int, _Stream] = {}
        self._answered: queue.SimpleQueue[tuple[_Stream, Reply | None]] = queue.SimpleQueue()
        self._bell, self._ringer = socket.socketpair()

    def serve(self) -> None:
        """Answer requests until the client goes away or says nothing for long.

        Raises:
            ConnectionError: when the client breaks off, or is to get no answer.
        """
        with self._bell, self._ringer, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            self._protocol.initiate_connection()
            open_ = True
            while open_:
                self._send()
                ready = {key.fileobj for key, _ in selector.select(_IDLE)}
                if self._bell in ready:
                    self._bell.recv(_CHUNK)
                    self._take_replies()
                open_ = bool(ready) and (self._socket not in ready or self._receive())
            self._send()

    def _receive(self) -> bool:
        """Take what the client sent; return whether there is more to come."""
        self._socket.setblocking(False)
        try:
            data = self._socket.recv(_CHUNK)
        except ssl.SSLWantReadError:
            return True
        finally:
            self._socket.settimeout(_IDLE)
        try:
            received = self._protocol.receive_data(data)
        except ProtocolError:
            # What it says to the client about that is still to be sent.
            return False
        for event in received:
            self._handle(event)
        ended = any(isinstance(event, events.ConnectionTerminated) for event in received)
        return bool(data) and not ended

    def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            headers = CaseInsensitiveDict({_text(k): _text(v) for k, v in event.headers})
            self._streams[event.stream_id] = _Stream(headers)
        elif isinstance(event, events.DataReceived):
            self._protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._streams[event.stream_id].body += event.data
        elif isinstance(event, events.StreamEnded):
            stream = self._streams[event.stream_id]
            threading.Thread(target=self._work, args=(stream,), daemon=True).start()
        elif isinstance(event, events.StreamReset):
            self._streams.pop(event.stream_id, None)

    def _work(self, stream: _Stream) -> None:
        try:
            reply = self._answer(stream.headers, bytes(stream.body))
        except ConnectionError:
            reply = None
        self._answered.put((stream, reply))
        try:
            self._ringer.send(b"!")
        except OSError:
            # The client has gone: nobody waits for this reply.
            return

    def _take_replies(self) -> None:
        while not self._answered.empty():
            stream, reply = self._answered.get()
            if reply is None:
                raise ConnectionAbortedError(f"no answer to {stream.headers.get(':path')}")
            stream.reply = reply

    def _send(self) -> None:
        for number, stream in list(self._streams.items()):
            if stream.reply is not None and self._written(number, stream, stream.reply):
                del self._streams[number]
        self._socket.sendall(self._protocol.data_to_send())

    def _written(self, number: int, stream: _Stream, reply: Reply) -> bool:
        """Write as much of a reply as the client takes now; return whether it was all."""
        if not stream.begun:
            stream.begun = True
            self._protocol.send_headers(number, reply.headers)
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
    return value if isinstance(value, str) else value.decode()
