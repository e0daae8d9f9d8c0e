"""Who a job is: a user of the machine without root, who acts on Google as the jobs' account.

The machine's account may do more than any job: make TPUs, change every job's record. Its tokens
come from the metadata server, which the kernel keeps the job's user from. What can't be kept apart
does not run: nothing here falls back to root.
"""

import contextlib
import json
import pwd
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path

from tpu_agent.jobs.environment import SetupError
from tpu_core.google import Call, message, parse
from tpu_core.times import seconds

USER = "tpu-job"
_EXISTS = 9
# Until the grants of the jobs' account count: sometimes seven minutes, says Google.
_GRANTS = 600
# Programs that have one of the server's addresses built in get to the job's own; names are still
# looked up there. The table is replaced whole, so that it is never missing.
# https://docs.cloud.google.com/compute/docs/metadata/querying-metadata (2026-11-24)
_CLOSED = """
table inet tpu_stack_jobs
delete table inet tpu_stack_jobs
table inet tpu_stack_jobs {{
  chain lead {{
    type nat hook output priority -100;
    meta skuid "{user}" ip daddr 169.254.169.254 tcp dport 80 redirect to :{port}
  }}
  chain close {{
    type filter hook output priority 0;
    meta skuid "{user}" ip daddr 169.254.169.254 tcp dport != 53 reject
    meta skuid "{user}" ip6 daddr fd20:ce::254 reject
  }}
}}
"""


class Identity:
    """The user of one attempt, with its own metadata server; without one, this process's user."""

    def __init__(
        self, metadata: "JobMetadata | None" = None, token: Callable[[], str] = str
    ) -> None:
        """Be a user with that server; `token` returns one of the machine's own account."""
        self._metadata, self._server, self.token = metadata, "", token

    @property
    def is_root(self) -> bool:
        """Whether jobs are root, as this process is."""
        return self._metadata is None

    def enter(self, check: Callable[[], None]) -> None:
        """Make the user, close the machine's server to it, and wait for the account's grants.

        `check` raises what ends the wait. Raises SetupError.
        """
        if self._metadata is None:
            return
        user = ("--system", "--user-group", "--no-create-home", "--shell=/usr/sbin/nologin", USER)
        _must(["useradd", *user], but=_EXISTS)
        # Neither cron nor a systemd that lingers starts anything of an expired account: after a
        # boot that would be before the packet filter is there.
        _must(["usermod", "--expiredate=1970-01-02", USER])
        kill_all()
        address, port = self._metadata.serve()
        self._server = f"{address}:{port}"
        _must(["nft", "--file", "-"], _CLOSED.format(user=USER, port=port))
        for left in reversed(range(_GRANTS)):
            try:
                self._metadata.token()
                return
            except OSError as error:
                if not left:
                    raise SetupError(f"{error} (for {_GRANTS} s)") from None
            check()
            time.sleep(1.0)

    def own(self, paths: Iterable[Path]) -> None:
        """Give files and folders to the user: links themselves, not what they lead to."""
        if self._metadata:
            _must(["chown", "--recursive", "--no-dereference", f"{USER}:", *map(str, paths)])

    def take(self, path: Path) -> None:
        """Take a folder back from the user, who reads it from then on and never changes it."""
        if self._metadata:
            # The first also ends what set-user-ID means.
            _must(["chown", "--recursive", "--no-dereference", "0:0", str(path)])
            _must(["chmod", "--recursive", "u+rw,go-w,a+rX", str(path)])

    def command(self, command: Sequence[str]) -> list[str]:
        """Return what runs a command as the user, who never becomes another."""
        who = (f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--no-new-privs")
        return ["setpriv", *who, *command] if self._metadata else list(command)

    def variables(self, home: Path) -> dict[str, str]:
        """Return how the processes of the job are told who they are."""
        names = ("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT")
        # Google's library for Python asks by HTTPS otherwise where the image has certificates.
        server = {**dict.fromkeys(names, self._server), "GCE_METADATA_MTLS_MODE": "none"}
        user = {"HOME": str(home), "USER": USER, "LOGNAME": USER}
        return {**server, **user} if self._metadata else {}


def kill_all() -> None:
    """Kill every process of the user, also those that have hidden that they are an attempt's."""
    # There may be no such user, or no room for another process.
    with contextlib.suppress(KeyError, OSError):
        user = pwd.getpwnam(USER).pw_uid
        subprocess.run(["sh", "-c", "kill -KILL -1 2>&-"], user=user, check=False)


def _must(command: Sequence[str], given: str = "", but: int = 0) -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode not in (0, but):
        raise SetupError(
            "jobs.asRoot is false, but jobs can't be isolated on this VM. Use another image, or "
            f"set jobs.asRoot: true. {command[0]}: {done.stderr.strip() or done.returncode}"
        )


# The job's own metadata server. The answers have Google's form:
# https://docs.cloud.google.com/compute/docs/metadata/predefined-metadata-keys (2026-11-24).

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
            # The kernel drops what comes beyond, and the client tries again after seconds.
            request_queue_size = _MOST

            def verify_request(self, request: object, client_address: object) -> bool:
                """Keep this process able to open files: a job may connect as often as it likes."""
                return threading.active_count() < _MOST

        loopback = str(IPv4Address(socket.INADDR_LOOPBACK))
        server = Server((loopback, 0), Handler)
        threading.Thread(target=server.serve_forever, name="metadata", daemon=True).start()
        return loopback, server.server_port

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
            known = {name.replace("-", "") for name in (*_INSTANCE, "zone")}
            kept = {k: v for k, v in parse(text.encode()).items() if k.lower() in known}
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
            raise FileNotFoundError(f"jobs may not read {path}")
        return own[path], ""
