"""A listening socket on the loopback interface: the cloud's front door, or a machine's network."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer

from localcloud.core.call import Request, Response
from localcloud.server import peer
from localcloud.server.connection import Connection
from localcloud.server.egress import Egress

Answer = Callable[[Request], Response]
_SUFFIXES = (".googleapis.com", ".google.internal")
_HOSTS = frozenset({"googleapis.com", "accounts.google.com", "metadata", "169.254.169.254"})


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
            # Wakes the thread at once, where the system can; else it looks by itself soon.
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self.shutdown()
        self.server_close()

    def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:
        """Let in this user's processes alone, where the system says whose they are."""
        return peer.may_enter(client_address, (str(self.server_address[0]), self.port))

    @staticmethod
    def emulates(host: str) -> bool:
        """Return whether the emulator answers for `host`; all other hosts are passed through."""
        return host.endswith(_SUFFIXES) or host in _HOSTS

    def answer(self, request: Request) -> Response:
        """Return the response to a request that came in here."""
        if request.host.endswith("googleapis.com") or request.host == "accounts.google.com":
            return self._apis(request)
        return self._direct(request)
