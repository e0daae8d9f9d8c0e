"""One client connection: plain HTTP, or TLS after CONNECT, with one request after another."""

from __future__ import annotations

import contextlib
import io
import logging
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import parse_qs, urlsplit

from localcloud.core.call import Request, Response

if TYPE_CHECKING:
    from localcloud.server.listener import Listener

log = logging.getLogger(__name__)
_CHUNK = 1 << 16


class Connection(BaseHTTPRequestHandler):
    """Reads requests and writes responses; what they mean is the listener's business."""

    protocol_version = "HTTP/1.1"
    # Small responses must leave at once: a write is a packet, and headers and body are one write.
    disable_nagle_algorithm = True
    wbufsize = -1
    tunnel_host = ""

    def __getattr__(self, name: str) -> Callable[[], None]:
        # BaseHTTPRequestHandler looks for do_GET, do_POST, …; all verbs are served alike.
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def do_CONNECT(self) -> None:
        """Open a tunnel: into the emulator for Google's hosts, through to all others."""
        listener = cast("Listener", self.server)
        host, _, port = self.path.rpartition(":")
        if not listener.emulates(host):
            self._pass_through(host, int(port))
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        try:
            tls = listener.tls.wrap_socket(self.connection, server_side=True)
        except (ssl.SSLError, OSError) as error:
            log.warning("TLS with a client of %s failed: %s", host, error)
            self.close_connection = True
            return
        self.connection = tls
        self.rfile = tls.makefile("rb")
        self.wfile = cast(io.BufferedIOBase, tls.makefile("wb"))
        self.tunnel_host = host
        self.close_connection = False

    def finish(self) -> None:
        """Flush and close, also a TLS connection that took the place of the plain one."""
        with contextlib.suppress(OSError):
            super().finish()
        if self.tunnel_host:
            with contextlib.suppress(OSError):
                self.connection.close()

    def handle_one_request(self) -> None:
        """Serve a request; a client that goes away ends the connection without a traceback."""
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError, TimeoutError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Requests are logged where they are answered."""

    def _serve(self) -> None:
        target = urlsplit(self.path)
        host = self.tunnel_host or target.hostname or ""
        stream, length = self._body()
        request = Request(
            verb=self.command,
            host=host,
            path=target.path or "/",
            query=parse_qs(target.query, keep_blank_values=True),
            headers=cast("Mapping[str, str]", self.headers),
            stream=stream,
            length=length,
        )
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.flush()
        response = cast("Listener", self.server).answer(request)
        # What a handler left unread would be taken for the next request.
        while stream.read(_CHUNK):
            pass
        self._write(response)

    def _body(self) -> tuple[IO[bytes], int]:
        # TensorFlow sends "Transfer-Encoding: identity" beside a Content-Length; only "chunked"
        # changes how a body is read (RFC 9112, section 6.1).
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return cast("IO[bytes]", _Chunked(self.rfile)), -1
        length = int(self.headers.get("Content-Length") or 0)
        return cast("IO[bytes]", _Limited(self.rfile, length)), length

    def _write(self, response: Response) -> None:
        body = response.body
        length = len(body) if isinstance(body, bytes) else response.length
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.status != 204 and "Content-Length" not in response.headers:
            self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        if self.command != "HEAD":
            for chunk in [body] if isinstance(body, bytes) else body:
                self.wfile.write(chunk)
        self.wfile.flush()

    def _pass_through(self, host: str, port: int) -> None:
        self.close_connection = True
        try:
            remote = socket.create_connection((host, port), timeout=20)
        except OSError as error:
            self.send_error(502, f"cannot reach {host}:{port}: {error}")
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        with remote:
            _shuttle(self.connection, remote)


class _Limited(io.RawIOBase):
    """The next `length` bytes of a stream, as a stream that ends there."""

    def __init__(self, stream: IO[bytes] | io.BufferedIOBase, length: int) -> None:
        self._stream = stream
        self._left = length

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        want = self._left if size is None or size < 0 else min(size, self._left)
        data = self._stream.read(want) if want else b""
        self._left -= len(data)
        # What came before the end is handed out; the next read tells that the rest is missing.
        if want and not data:
            raise ConnectionError(f"the client closed with {self._left} bytes still to send")
        return data

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer)).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


class _Chunked(io.RawIOBase):
    """A body in chunked transfer coding (RFC 9112, section 7.1), decoded while it is read."""

    def __init__(self, stream: IO[bytes] | io.BufferedIOBase) -> None:
        self._stream = stream
        self._left = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        whole = size is None or size < 0
        parts = bytearray()
        while not self._ended and (whole or len(parts) < (size or 0)):
            if not self._left:
                self._next_chunk()
                continue
            want = self._left if whole else min(self._left, (size or 0) - len(parts))
            data = self._stream.read(want)
            if len(data) < want:
                raise ConnectionError("the client closed inside a chunk")
            parts += data
            self._left -= want
            if not self._left:
                self._stream.readline()
        return bytes(parts)

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer)).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _next_chunk(self) -> None:
        line = self._stream.readline().split(b";")[0].strip()
        try:
            self._left = int(line, 16)
        except ValueError:
            raise ConnectionError(f"{line!r} is no chunk size") from None
        if self._left == 0:
            self._ended = True
            while self._stream.readline().strip():
                pass


def _shuttle(left: socket.socket, right: socket.socket) -> None:
    peers = {left: right, right: left}
    while True:
        ready, _, _ = select.select(list(peers), [], [], 60)
        if not ready:
            return
        for source in ready:
            try:
                data = source.recv(_CHUNK)
                if not data:
                    return
                peers[source].sendall(data)
            except OSError:
                return
