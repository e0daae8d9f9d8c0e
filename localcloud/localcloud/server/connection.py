"""One client connection: plain HTTP, or TLS after CONNECT, with one request after another."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Protocol, cast
from urllib.parse import SplitResult, parse_qs, urlsplit

from localcloud.core.call import Request, Response, Stream
from localcloud.server.bodies import ChunkedBody, LimitedBody
from localcloud.server.egress import Egress, shuttle

log = logging.getLogger(__name__)
_CHUNK = 1 << 16


class Owner(Protocol):
    """The listener that accepted a connection, and knows what its requests mean."""

    tls: ssl.SSLContext
    egress: Egress

    def emulates(self, host: str) -> bool:
        """Return whether the emulator answers for `host`; all other hosts are passed through."""

    def answer(self, request: Request) -> Response:
        """Answer a request to a host that the emulator answers for."""


class Connection(BaseHTTPRequestHandler):
    """Reads requests and writes responses; its listener decides what they mean."""

    protocol_version = "HTTP/1.1"
    # Small responses must leave at once: a write is a packet, and headers and body are one write.
    disable_nagle_algorithm = True
    wbufsize = -1
    # Seconds without a byte after which a connection is given up; its thread ends then.
    timeout = 600
    tunnel_host = ""

    def __getattr__(self, name: str) -> Callable[[], None]:
        # BaseHTTPRequestHandler looks for do_GET, do_POST, …; all verbs are served alike.
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def do_CONNECT(self) -> None:
        """Open a tunnel: into the emulator for Google's hosts, through to all others."""
        listener = self._listener()
        try:
            target = urlsplit(f"//{self.path}")
            host, port = target.hostname or "", target.port or 443
        except ValueError as error:
            self.send_error(400, f"CONNECT {self.path}: {error}")
            return
        if not listener.emulates(host):
            self._pass_through(host, port)
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
        if tls.selected_alpn_protocol() == "h2":
            self._serve_grpc(tls, host)
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
        """Log nothing: requests are logged where they are answered."""

    def _serve_grpc(self, tls: ssl.SSLSocket, host: str) -> None:
        # Imported late: most sessions have no client of gRPC.
        from localcloud.server.grpc.calls import answer
        from localcloud.server.http2 import Http2

        self.close_connection = True
        apis = self._listener().answer
        with tls, contextlib.suppress(OSError):
            Http2(tls, lambda headers, body: answer(host, headers, body, apis)).serve()

    def _listener(self) -> Owner:
        return cast(Owner, self.server)

    def _serve(self) -> None:
        try:
            target = urlsplit(self.path)
            host = self.tunnel_host or target.hostname or ""
            stream, length = self._body()
        except ValueError as error:
            self.close_connection = True
            self.send_error(400, str(error))
            return
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
        response = self._answer(request, target)
        # Read what the handler left, or it would be taken for the next request.
        while stream.read(_CHUNK):
            pass
        self._write(response)

    def _answer(self, request: Request, target: SplitResult) -> Response:
        listener = self._listener()
        if target.scheme != "http" or listener.emulates(request.host):
            return listener.answer(request)
        try:
            return listener.egress.fetch(request, self.path)
        except OSError as error:
            return Response(502, f"cannot reach {request.host}: {error}\n".encode())

    def _body(self) -> tuple[Stream, int]:
        # TensorFlow sends "Transfer-Encoding: identity" beside a Content-Length; only "chunked"
        # changes how a body is read (RFC 9112, section 6.1).
        self._acknowledge()
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return ChunkedBody(self.rfile), -1
        announced = self.headers.get("Content-Length", "0").strip()
        if not announced.isdecimal():
            raise ValueError(f"Content-Length {announced!r} is no number of bytes")
        length = int(announced)
        return LimitedBody(self.rfile, length), length

    def _acknowledge(self) -> None:
        # urllib3, under Google's Python clients, turns Nagle's algorithm on for proxies: it sends
        # a body only once its head is acknowledged, which Linux puts off for 40 ms otherwise.
        quick = getattr(socket, "TCP_QUICKACK", None)
        if quick is not None:
            self.connection.setsockopt(socket.IPPROTO_TCP, quick, 1)

    def _write(self, response: Response) -> None:
        body = response.body
        length = len(body) if isinstance(body, bytes) else response.length
        self.log_request(response.status)
        self.send_response_only(response.status)
        usual = {"Server": self.version_string(), "Date": self.date_time_string()}
        for name, value in (usual | response.headers).items():
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
            remote = self._listener().egress.tunnel(host, port)
        except OSError as error:
            self.send_error(502, f"cannot reach {host}:{port}: {error}")
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        with remote:
            shuttle(self.connection, remote)
