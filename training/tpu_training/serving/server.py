"""The HTTP server for the REST API, with threads and keep-alive."""

import json
import logging
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tpu_training.serving.rest import Answer, RestApi

# About the JSON text of a batch of 256 images of 224 x 224 x 3.
_LARGEST_BODY_BYTES = 256 << 20

logger = logging.getLogger(__name__)


def create_server(api: RestApi, host: str, port: int) -> ThreadingHTTPServer:
    """Listen on `host`:`port` (0: any free one); call `serve_forever` on the result."""

    class Handler(_Handler):
        rest_api = api

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    # Otherwise a small answer waits 40 ms for the client to acknowledge its headers.
    disable_nagle_algorithm = True
    rest_api: RestApi

    def do_GET(self) -> None:
        """Model status and metadata."""
        self._send(self.rest_api.answer("GET", self.path, b""))

    def do_POST(self) -> None:
        """Predict."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _LARGEST_BODY_BYTES:
            # The next request can't be told from the unread body.
            self.close_connection = True
            message = f"expected a Content-Length of at most {_LARGEST_BODY_BYTES} bytes"
            self._send(Answer(HTTPStatus.BAD_REQUEST, {"error": message}))
            return
        self._send(self.rest_api.answer("POST", self.path, self.rfile.read(int(length))))

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log a line per request."""
        logger.debug("serve: %s %s", self.address_string(), format % args)
