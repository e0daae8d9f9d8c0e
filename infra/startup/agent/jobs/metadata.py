"""The metadata server of a job: what it may know of its machine, and tokens of the jobs' account.

The machine's own gives tokens of the machine's account to every process that gets to it, so that
identity.py keeps jobs from it. The answers have Google's form:
https://docs.cloud.google.com/compute/docs/metadata/predefined-metadata-keys (2026-11-24).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address

from infra.startup.agent.google import Call, message, parse
from infra.startup.agent.times import seconds

_ROOT = "/computeMetadata/v1/"
_ACCOUNTS = "instance/service-accounts"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Where a program is, and that its machine is about to go; then what a TPU tells libtpu and JAX
# (jax/_src/clusters/cloud_tpu_cluster.py).
_INSTANCE = ("hostname", "id", "maintenance-event", "name", "preempted", "upcoming-maintenance")
_OF_TPU = ("accelerator-type", "agent-worker-number", "tpu-env", "worker-network-endpoints")
_TOLD = {
    *("project/project-id", "project/numeric-project-id", "instance/zone"),
    *(f"instance/{name}" for name in _INSTANCE),
    *(f"instance/attributes/{name}" for name in _OF_TPU),
}
_EARLY = 300.0
_MOST = 100
Ask = Callable[[str], tuple[str, str]]
"""Returns an entry of the machine's own server, and its ETag. Raises OSError."""


class JobMetadata:
    """Answers what a job asks."""

    def __init__(self, account: str, call: Call, ask: Ask) -> None:
        """Use the jobs' account, of which the one that `call` calls Google as makes tokens."""
        self._account, self._call, self._ask = account, call, ask
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def serve(self) -> tuple[str, int]:
        """Serve on loopback while this process lives; return address and port."""
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text, etag = 403, "missing required header: Metadata-Flavor\n", ""
                if self.headers.get("Metadata-Flavor", "").lower() == "google":
                    try:
                        status, (text, etag) = 200, answer(self.path)
                    except OSError as error:
                        missing = isinstance(error, FileNotFoundError)
                        status = 404 if missing else getattr(error, "code", 503)
                        text = f"{error}\n"
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("ETag", etag)
                kind = "json" if text.startswith("{") else "text"
                self.send_header("Content-Type", f"application/{kind}")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: what this process writes is in the job's log."""

        class Server(ThreadingHTTPServer):
            def verify_request(self, request: object, client_address: object) -> bool:
                """Keep this process able to open files: a job may connect as often as it likes."""
                return threading.active_count() < _MOST

        here = str(IPv4Address(socket.INADDR_LOOPBACK))
        server = Server((here, 0), Handler)
        threading.Thread(target=server.serve_forever, name="metadata", daemon=True).start()
        return here, server.server_port

    def token(self) -> str:
        """Return a token of the jobs' account as the server answers it. Raises OSError."""
        with self._lock:
            if time.time() > self._until - _EARLY:
                url = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
                url += f"{self._account}:generateAccessToken"
                status, answer = self._call("POST", url, json.dumps({"scope": [_SCOPE]}))
                if status != 200:
                    raise OSError(f"no token of {self._account}: {message(answer)}")
                self._token, self._until = answer["accessToken"], seconds(answer["expireTime"])
            about = {"access_token": self._token, "token_type": "Bearer"}
            return json.dumps({**about, "expires_in": int(self._until - time.time())})

    def answer(self, asked: str) -> tuple[str, str]:
        """Return the answer to a GET, and its ETag. Raises OSError."""
        path, _, query = asked.removeprefix(_ROOT).partition("?")
        path = path.rstrip("/").replace(f"/{self._account}", "/default")
        if path in _TOLD:
            return self._ask(f"{path}?{query}")
        if path == "instance" and "recursive=true" in query.lower():
            text, etag = self._ask(f"{path}/?{query}")
            told = {name.replace("-", "") for name in (*_INSTANCE, "zone")}
            kept = {k: v for k, v in parse(text.encode()).items() if k.lower() in told}
            return json.dumps(kept), etag
        if path == f"{_ACCOUNTS}/default/token":
            return self.token(), ""
        account = {"aliases": ["default"], "email": self._account, "scopes": [_SCOPE]}
        own = {
            "": "computeMetadata/\n",
            _ACCOUNTS: f"default/\n{self._account}/\n",
            f"{_ACCOUNTS}/default": json.dumps(account),
            f"{_ACCOUNTS}/default/email": self._account,
            f"{_ACCOUNTS}/default/scopes": _SCOPE,
        }
        if path not in own:
            raise FileNotFoundError(f"no job is told {path}")
        return own[path], ""
