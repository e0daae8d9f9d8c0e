"""The way out: what machines and clients send to hosts that are not Google's."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from localcloud.core.call import Request, Response

_CONNECT_SECONDS = 20.0
_IDLE_SECONDS = 600.0
_CHUNK = 1 << 16
# Headers that are for one connection only (RFC 9110, section 7.6.1).
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


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
        """Return a connection to a host's port.

        Raises:
            OSError: when it can't be reached.
        """
        proxy = self._proxy("https", host)
        if proxy is None:
            return socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
        return _through(proxy, host, port)

    def fetch(self, request: Request, url: str) -> Response:
        """Return the answer of a plain HTTP server.

        Raises:
            OSError: when it can't be reached.
        """
        target = urlsplit(url)
        host = target.hostname or ""
        proxy = self._proxy("http", host)
        path = f"{target.path or '/'}{'?' if target.query else ''}{target.query}"
        if proxy is None:
            connection = http.client.HTTPConnection(
                host, target.port or 80, timeout=_CONNECT_SECONDS
            )
        else:
            connection, path = http.client.HTTPConnection(proxy, timeout=_CONNECT_SECONDS), url
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        body = request.stream if request.length else None
        connection.request(request.verb, path, body, headers)
        answer = connection.getresponse()
        kept = {k.title(): v for k, v in answer.getheaders() if k.lower() not in _HOP_BY_HOP}
        length = answer.length
        if length is None:
            # The length must be known first; pages without one are generated and small.
            content = answer.read()
            return Response(answer.status, content, kept)
        return Response(answer.status, _pieces(answer), kept, length)

    def _proxy(self, kind: str, host: str) -> str | None:
        return None if proxy_bypass(host) else self._proxies.get(kind)


def shuttle(left: socket.socket, right: socket.socket) -> None:
    """Copy in both directions until both sides have said all."""
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
    # Tell the other side that no more comes; it may still answer.
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while data := answer.read(_CHUNK):
        yield data


def _through(proxy: str, host: str, port: int) -> socket.socket:
    connection = http.client.HTTPConnection(proxy, timeout=_CONNECT_SECONDS)
    connection.set_tunnel(f"[{host}]" if ":" in host else host, port)
    connection.connect()
    tunnel: socket.socket = connection.sock
    return tunnel
