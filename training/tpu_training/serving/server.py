"""The HTTP server for the REST API, with threads and keep-alive."""

import json
import logging
import re
import socket
from contextlib import nullcontext
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import BoundedSemaphore, Timer
from typing import Any

from tpu_training.serving.rest import Answer, RestApi

# About the JSON text of a batch of 256 images of 224 x 224 x 3.
_LARGEST_BODY_BYTES = 256 << 20
_SMALL_BODY_BYTES = 1 << 20
# So many are open, and so many large bodies in memory; others are closed, or wait.
_CONNECTIONS, _BODIES = 64, 4
# A client may be silent for so long, and take so long to send a request.
_SILENT_SECONDS, _REQUEST_SECONDS = 30.0, 120.0
_JSON = "application/json"
_LENGTH = re.compile(r"[0-9]{1,9}")
# A Host header: an IPv6 address, or another address or name; and perhaps a port.
_HOST = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::[0-9]*)?")

logger = logging.getLogger(__name__)


def create_server(api: RestApi, host: str, port: int) -> ThreadingHTTPServer:
    """Listen on `host`:`port` (0: any free one); call `serve_forever` on the result."""

    class Handler(_Handler):
        rest_api = api
        bodies = BoundedSemaphore(_BODIES)

    return _Server((host, port), Handler)


class _Server(ThreadingHTTPServer):
    """Closes connections over the limit at once."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._free = BoundedSemaphore(_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    # Otherwise a small answer waits 40 ms for the client to acknowledge its headers.
    disable_nagle_algorithm = True
    timeout = _SILENT_SECONDS
    connection: socket.socket
    rest_api: RestApi
    bodies: BoundedSemaphore

    def handle_one_request(self) -> None:
        """Read headers and body for a limited time, however slowly they come."""
        timer = Timer(_REQUEST_SECONDS, self.connection.shutdown, [socket.SHUT_RD])
        timer.daemon = True
        timer.start()
        super().handle_one_request()
        timer.cancel()

    def do_GET(self) -> None:
        """Model status and metadata."""
        if not self._refused():
            self._send(self.rest_api.answer("GET", self.path, b""))

    def do_POST(self) -> None:
        """Predict."""
        if self._refused():
            return
        given = self.headers.get("Content-Length", "")
        length = int(given) if _LENGTH.fullmatch(given) else _LARGEST_BODY_BYTES + 1
        if length > _LARGEST_BODY_BYTES:
            message = f"expected a Content-Length of at most {_LARGEST_BODY_BYTES} bytes"
            self._refuse(HTTPStatus.BAD_REQUEST, message)
        elif self.headers.get_content_type() != _JSON:
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type: {_JSON}")
        else:
            with self.bodies if length > _SMALL_BODY_BYTES else nullcontext():
                self._send(self.rest_api.answer("POST", self.path, self.rfile.read(length)))

    def _refused(self) -> bool:
        """Refuse what a web page sends: also one whose name was made to mean this machine."""
        here = str(self.connection.getsockname()[0])
        parts = _HOST.fullmatch(self.headers.get("Host", ""))
        host = (parts[1] or parts[2]) if parts else ""
        if self.headers.get("Origin"):
            self._refuse(HTTPStatus.FORBIDDEN, "web pages of other servers can't ask this one")
        elif not _leads_nowhere_else(host) and ip_address(here).is_loopback:
            message = f"Host: {host} is not this server; ask {here}"
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, message)
        else:
            return False
        return True

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        # The next request can't be told from an unread body.
        self.close_connection = True
        self._send(Answer(status, {"error": message}))

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", _JSON)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log a line per request."""
        logger.debug("serve: %s %s", self.address_string(), format % args)


def _leads_nowhere_else(host: str) -> bool:
    """Return whether `host` is an address, or a name that has no domain to be bought."""
    try:
        ip_address(host)
    except ValueError:
        return bool(host) and "." not in host
    return True
