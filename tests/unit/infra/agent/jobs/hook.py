"""A webhook on this machine."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from infra.startup.agent.google import Json


class Hook:
    """What it was told, and with which status it answers."""

    def __init__(self) -> None:
        self.told: list[Json] = []
        self.status = 200
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"]))
                hook.told.append(json.loads(text))
                self.send_response(hook.status)
                self.send_header("Location", f"{hook.url}/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """It writes nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/very-secret"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
