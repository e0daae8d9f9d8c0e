"""The HTTPS proxy on loopback: it answers for Google's hosts and passes all others through.

A listener is the cloud's front door, or the network of one machine.
"""

import contextlib
import http.client
import io
import logging
import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast
from urllib.parse import SplitResult, parse_qs, urlsplit
from urllib.request import getproxies, proxy_bypass

from localcloud.core.call import Request, Response, Stream

Answer = Callable[[Request], Response]
_SUFFIXES = (".googleapis.com", ".google.internal")
_HOSTS = frozenset({"googleapis.com", "accounts.google.com", "metadata", "169.254.169.254"})
log = logging.getLogger(__name__)
_CHUNK = 1 << 16
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# How a client that speaks IPv6 shows an address of IPv4.
_MAPPED = f"{int.from_bytes(bytes([0, 0, 255, 255]), sys.byteorder):08X}"
# Columns of those tables; a socket that no process holds has no inode.
_UID, _INODE = 7, 9
_NO_INODE = "0"
_ROOT = 0
_SERVER = "localcloud"
_MOST_HEADERS = 100
_LONGEST_LINE = 1 << 16
# Other servers see other headers where a name has blanks or a value a CR (RFC 9112, 2.2 and 5.1).
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\0\r\n]*)\r?\n")
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}")
_CONNECT_SECONDS = 20.0
_IDLE_SECONDS = 600.0
# Headers that are for one connection only (RFC 9110, section 7.6.1).
_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
    *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
}


class Listener(ThreadingHTTPServer):
    """Serves API calls through CONNECT, and direct requests to the owner of the port.

    Args:
        port: 0 for any free one.
        tls: the TLS settings shown to clients of Google's hosts.
        apis: answers calls to Google's API hosts.
        direct: answers requests to the port itself and to the metadata server's names.
    """

    daemon_threads = True
    request_queue_size = 128
    # Machines keep connections open; a stop must not wait for them.
    block_on_close = False

    def __init__(self, port: int, *, tls: ssl.SSLContext, apis: Answer, direct: Answer) -> None:
        super().__init__(("127.0.0.1", port), Connection)
        self.tls = tls
        self.egress = Egress(self.port)
        self._apis = apis
        self._direct = direct
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Begin to serve in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting connections and free the port."""
        if self._thread.is_alive():
            # Wakes the thread at once, where the system can; else it looks again soon.
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self.shutdown()
        self.server_close()

    def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:
        """Let in this user's processes alone, where the system says whose they are.

        Loopback is shared by all users of this computer, and the tokens of the cloud are theirs to
        use if they get in.
        """
        return may_enter(client_address, (str(self.server_address[0]), self.port))

    @staticmethod
    def emulates(host: str) -> bool:
        """Return whether the emulator answers for `host`; all other hosts are passed through."""
        return host.endswith(_SUFFIXES) or host in _HOSTS

    def answer(self, request: Request) -> Response:
        """Return the response to a request that came in here."""
        if request.host.endswith("googleapis.com") or request.host == "accounts.google.com":
            return self._apis(request)
        return self._direct(request)


class Connection(BaseHTTPRequestHandler):
    """Reads requests and writes responses; its listener decides what they mean."""

    protocol_version = "HTTP/1.1"
    # Small responses must leave at once: a write is a packet, and headers and body are one write.
    disable_nagle_algorithm = True
    wbufsize = -1
    # Seconds without a byte after which a connection is given up; its thread ends then.
    timeout = 600
    tunnel_host = ""

    def parse_request(self) -> bool:
        """Read a request's head; False when there is none or it was refused.

        The base class parses headers as a mail's, which takes longer than answering most calls.
        """
        self.command, self.request_version, self.close_connection = "", self.protocol_version, True
        line = self.rfile.readline(_LONGEST_LINE)
        if not line:
            return False
        self.requestline = line.decode("latin-1").strip()
        words = self.requestline.split()
        if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or line[-1:] != b"\n":
            self.send_error(400, f"Bad request line: {self.requestline[:80]!r}")
            return False
        self.command, self.path, self.request_version = words
        try:
            self.head = Headers.read(self.rfile)
        except ValueError as error:
            self.send_error(400, str(error))
            return False
        asked, old = self.head.get("Connection", "").lower(), self.request_version == "HTTP/1.0"
        self.close_connection = asked != "keep-alive" if old else asked == "close"
        return True

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
        self._established()
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
            if self.parse_request():
                self.do_CONNECT() if self.command == "CONNECT" else self._serve()
        except (ConnectionError, ssl.SSLError, TimeoutError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests are logged where they are answered."""

    def _serve_grpc(self, tls: ssl.SSLSocket, host: str) -> None:
        # Imported late: most sessions have no client of gRPC.
        from localcloud.server.grpc import Http2, answer

        self.close_connection = True
        apis = self._listener().answer
        with tls, contextlib.suppress(OSError):
            Http2(tls, lambda headers, body: answer(host, headers, body, apis)).serve()

    def _listener(self) -> Listener:
        return cast(Listener, self.server)

    def _serve(self) -> None:
        try:
            # What follows two slashes would be taken for a host.
            target = urlsplit(re.sub("^//+", "/", self.path))
            host = self.tunnel_host or target.hostname or ""
            stream, length = self._body()
            if length:
                self._acknowledge()
        except ValueError as error:
            self.close_connection = True
            self.send_error(400, str(error))
            return
        query = parse_qs(target.query, keep_blank_values=True) if target.query else {}
        path = target.path or "/"
        request = Request(self.command, host, path, query, self.head, stream, length)
        if self.head.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
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
        # TensorFlow sends "Transfer-Encoding: identity" with a Content-Length.
        coding = self.head.get("Transfer-Encoding", "identity").lower()
        if coding == "chunked":
            return ChunkedBody(self.rfile), -1
        if coding != "identity":
            raise ValueError(f"Transfer-Encoding {coding!r} is neither chunked nor identity")
        announced = self.head.get("Content-Length", "0")
        if not announced.isdecimal():
            raise ValueError(f"Content-Length {announced!r} is not a number of bytes")
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
        phrase = self.responses.get(response.status, ("",))[0]
        headers = {"Server": _SERVER, **response.headers}
        # The `Date` of an API's answer is by the cloud's clock.
        if "Date" not in headers:
            headers["Date"] = self.date_time_string()
        # A 204 must not have a length, nor a 304 another than its 200 (RFC 9110, section 8.6).
        if response.status not in (204, 304):
            headers.setdefault("Content-Length", str(length or 0))
        # A client of HTTP/1.0 that asked to go on must be told so (RFC 9112, appendix C.2.2).
        if self.request_version == "HTTP/1.0" and not self.close_connection:
            headers["Connection"] = "keep-alive"
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = f"HTTP/1.1 {response.status} {phrase}\r\n{''.join(lines)}\r\n"
        self.wfile.write(head.encode("latin-1"))
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
        self._established()
        with remote:
            shuttle(self.connection, remote)

    def _established(self) -> None:
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()


class Headers(dict[str, str]):
    """A request's headers, by their names in lower case; `get` and `[]` take any case."""

    @classmethod
    def read(cls, stream: io.BufferedIOBase) -> "Headers":
        """Return the headers that begin here; ValueError when they are malformed or too many."""
        found = cls()
        for _ in range(_MOST_HEADERS + 1):
            line = stream.readline(_LONGEST_LINE).decode("latin-1")
            if line in ("\r\n", "\n"):
                return found
            if not (header := _HEADER.fullmatch(line)):
                raise ValueError(f"Bad header: {line.strip()[:80]!r}")
            name, value = header[1].lower(), header[2].strip(" \t")
            found[name] = f"{found[name]}, {value}" if name in found else value
        raise ValueError(f"Too many headers: a request may have {_MOST_HEADERS}")

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        """Return a header's value; of several that have this name, all."""
        return super().get(name.lower(), default)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())


class LimitedBody:
    """The next `length` bytes of a stream.

    Without it a handler that reads on would take the next request of the connection for the body.
    """

    def __init__(self, stream: io.BufferedIOBase, length: int) -> None:
        self._stream = stream
        self._left = length

    def read(self, size: int = -1, /) -> bytes:
        """See `Stream.read`."""
        want = self._left if size < 0 else min(size, self._left)
        data = self._stream.read(want) if want else b""
        self._left -= len(data)
        # Hand out what came before the end; the next read raises for the missing rest.
        if want and not data:
            raise ConnectionError(f"the client closed with {self._left} bytes still to send")
        return data


class ChunkedBody:
    """A body in chunked transfer coding (RFC 9112, section 7.1), decoded while it is read."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream
        self._left = 0
        self._ended = False

    def read(self, size: int = -1, /) -> bytes:
        """See `Stream.read`."""
        parts = bytearray()
        while not self._ended and (size < 0 or len(parts) < size):
            if not self._left:
                self._next_chunk()
                continue
            want = self._left if size < 0 else min(self._left, size - len(parts))
            data = self._stream.read(want)
            if len(data) < want:
                raise ConnectionError("the client closed inside a chunk")
            parts += data
            self._left -= want
            if not self._left and self._stream.readline(2) not in (b"\r\n", b"\n"):
                raise ConnectionError("a chunk is longer than it says")
        return bytes(parts)

    def _next_chunk(self) -> None:
        line = self._stream.readline(_LONGEST_LINE).split(b";")[0].strip()
        # `int` takes a sign, too: a negative number of bytes would be all that ever come.
        if not _CHUNK_SIZE.fullmatch(line):
            raise ConnectionError(f"{line!r} is not a chunk size")
        self._left = int(line, 16)
        if self._left == 0:
            self._ended = True
            while self._stream.readline().strip():
                pass


# Loopback is shared by all users of a machine. Linux says in `/proc/net/tcp` which user a socket
# belongs to (Documentation/networking/proc_net_tcp.rst); other systems say it to root alone.


def knows_users() -> bool:
    """Return whether this system says whose a connection is."""
    return _TABLES[0].exists()


def may_enter(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether a connection on loopback is of this process' user, or of root.

    A socket that no process holds any longer has no user, and is not let in either.
    """
    return not knows_users() or _user_of(_shown(client), _shown(server)) in (_ROOT, os.geteuid())


def _user_of(client: str, server: str) -> int | None:
    # A connection on loopback has two rows. The client's own has its address first.
    mapped = "0" * 16 + _MAPPED
    for table, before in zip(_TABLES, ("", mapped), strict=True):
        wanted = f" {before}{client} {before}{server} "
        try:
            text = table.read_text(encoding="ascii")
        except OSError:
            continue
        found = text.find(wanted)
        if found >= 0:
            row = text[text.rfind("\n", 0, found) + 1 :].partition("\n")[0].split()
            return None if row[_INODE] == _NO_INODE else int(row[_UID])
    return None


def _shown(address: tuple[str, int]) -> str:
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"


class Egress:
    """Connects to other hosts, through the user's own proxy where there is one.

    Args:
        own_port: of the listener; a proxy variable that names it comes from `localcloud env` and
            would lead back here.
    """

    def __init__(self, own_port: int) -> None:
        own = (f"127.0.0.1:{own_port}", f"localhost:{own_port}")
        proxies = {kind: urlsplit(url).netloc for kind, url in getproxies().items()}
        self._proxies = {kind: proxy for kind, proxy in proxies.items() if proxy not in own}

    def tunnel(self, host: str, port: int) -> socket.socket:
        """Return a connection to a host's port; OSError when it can't be reached."""
        proxy = self._proxy("https", host)
        if proxy is None:
            return socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
        return _through(proxy, host, port)

    def fetch(self, request: Request, url: str) -> Response:
        """Return the answer of a plain HTTP server; OSError when it can't be reached."""
        target = urlsplit(url)
        host = target.hostname or ""
        proxy = self._proxy("http", host)
        path = f"{target.path or '/'}{'?' if target.query else ''}{target.query}"
        # A proxy gets the whole URL, a server the path alone.
        path = url if proxy else path
        to = proxy or f"{f'[{host}]' if ':' in host else host}:{target.port or 80}"
        connection = http.client.HTTPConnection(to, timeout=_CONNECT_SECONDS)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        body = request.stream if request.length else None
        connection.request(request.verb, path, body, headers)
        answer = connection.getresponse()
        kept = {k.title(): v for k, v in answer.getheaders() if k.lower() not in _HOP_BY_HOP}
        if answer.length is None:
            # The length must be known first; pages without one are generated and small.
            return Response(answer.status, answer.read(), kept)
        pieces = iter(lambda: answer.read(_CHUNK), b"")
        return Response(answer.status, pieces, kept, answer.length)

    def _proxy(self, kind: str, host: str) -> str | None:
        return None if proxy_bypass(host) else self._proxies.get(kind)


def shuttle(left: socket.socket, right: socket.socket) -> None:
    """Copy in both directions until both sides have sent everything.

    A side that has sent everything may still receive: a half-closed connection stays open.
    """
    for side in (left, right):
        side.settimeout(_IDLE_SECONDS)
    back = threading.Thread(target=_copy, args=(right, left), daemon=True)
    back.start()
    _copy(left, right)
    back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    # Tell the other side that this was all; it may still answer.
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _through(proxy: str, host: str, port: int) -> socket.socket:
    connection = http.client.HTTPConnection(proxy, timeout=_CONNECT_SECONDS)
    connection.set_tunnel(f"[{host}]" if ":" in host else host, port)
    connection.connect()
    tunnel: socket.socket = connection.sock
    return tunnel
