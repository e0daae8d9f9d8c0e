"""Answers a machine's requests to `http://metadata.google.internal/`.

Source of what it does: cloud.google.com/compute/docs/metadata/querying-metadata.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from typing import Any

from localcloud.core.call import Request, Response
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.machines import MachineSpec
from localcloud.machines.metadata import guest_attributes, tokens, tree

_ROOT = "/computeMetadata/v1"
_HOSTS = ("metadata.google.internal", "metadata", "169.254.169.254", "127.0.0.1", "localhost", "")
_GUEST = "instance/guest-attributes/"
_ACCOUNT = re.compile(r"instance/service-accounts/([^/]+)/(token|identity)")
# Seconds between two looks at the project's metadata, whose changes don't wake a waiting request.
_LOOK = 0.5
_REFUSED = {
    "Metadata-Flavor": "missing required header: Metadata-Flavor:Google",
    "X-Forwarded-For": "requests with the header X-Forwarded-For are refused",
}


class MetadataServer:
    """The metadata server of one running machine."""

    def __init__(self, cloud: Cloud, spec: MachineSpec) -> None:
        self._cloud = cloud
        self._spec = spec
        self._preempted = False
        self._closed = False
        self._changed = threading.Condition()

    def publish(self, *, spec: MachineSpec | None = None, preempted: bool | None = None) -> None:
        """Change what the server says and wake those who wait for a change."""
        with self._changed:
            self._spec = spec or self._spec
            self._preempted = self._preempted if preempted is None else preempted
            self._changed.notify_all()

    def close(self) -> None:
        """Let waiting requests go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def answer(self, request: Request) -> Response:
        """Return the response to a request that came in at the machine's own port."""
        try:
            response = self._answer(request)
        except ApiError as error:
            response = _plain(f"{error.message}\n", error.code)
        response.headers["Metadata-Flavor"] = "Google"
        response.headers["Server"] = "Metadata Server for VM"
        return response

    def _answer(self, request: Request) -> Response:
        if request.host not in _HOSTS:
            raise ApiError(502, f"a local machine reaches {request.host} by https only")
        if request.headers.get("X-Forwarded-For"):
            raise ApiError(403, _REFUSED["X-Forwarded-For"])
        if request.headers.get("Metadata-Flavor", "").lower() != "google":
            raise ApiError(403, _REFUSED["Metadata-Flavor"])
        if request.path in ("/", "/computeMetadata", "/computeMetadata/"):
            return _plain("computeMetadata/\n" if request.path == "/" else "v1/\n")
        if not request.path.startswith(f"{_ROOT}/") and request.path != _ROOT:
            raise ApiError(404, f"the metadata server has no {request.path}")
        path = request.path.removeprefix(_ROOT).lstrip("/")
        if (path + "/").startswith(_GUEST):
            return self._guest_attributes(request, path.removeprefix(_GUEST.rstrip("/")))
        if request.verb not in ("GET", "HEAD"):
            raise ApiError(405, f"{request.verb} is not allowed on {request.path}")
        special = _ACCOUNT.fullmatch(path)
        if special:
            return self._credential(request, *special.groups())
        return self._entry(request, path)

    def _entry(self, request: Request, path: str) -> Response:
        recursive = _arg(request, "recursive").lower() == "true"
        node = self._node(path)
        if tree.is_folder(node) and not recursive and path and not path.endswith("/"):
            location = f"http://{request.headers.get('Host', 'metadata.google.internal')}"
            return Response(301, b"", {"Location": f"{location}{request.path}/"})
        if _arg(request, "wait_for_change").lower() == "true":
            node = self._wait(request, path, node)
        headers = {"ETag": _etag(node), "Content-Type": "application/text"}
        form = _arg(request, "alt") or ("json" if recursive else "text")
        if form not in ("json", "text"):
            raise ApiError(400, f"alt={form} is neither json nor text")
        if form == "json" and (recursive or not tree.is_folder(node)):
            headers["Content-Type"] = "application/json"
            body = tree.as_json(node)
        elif tree.is_folder(node):
            verbatim = tree.verbatim_below(path)
            body = (
                tree.flat(node, verbatim=verbatim)
                if recursive
                else tree.listing(node, verbatim=verbatim)
            )
        else:
            body = tree.text(node)
        return Response(200, body.encode(), headers)

    def _node(self, path: str) -> Any:
        everything = tree.build(self._cloud, self._spec, preempted=self._preempted)
        if self._guests_allowed(everything):
            everything["instance"]["guestAttributes"] = {}
        try:
            return tree.find(everything, path)
        except KeyError:
            raise ApiError(404, f"the metadata server has no {_ROOT}/{path}") from None

    def _wait(self, request: Request, path: str, node: Any) -> Any:
        """Return the entry once it differs from `last_etag`, or after `timeout_sec` as it is."""
        last = _arg(request, "last_etag") or _etag(node)
        limit = _arg(request, "timeout_sec")
        if limit and not limit.isdigit():
            raise ApiError(400, f"timeout_sec={limit} is no number of seconds")
        deadline = time.monotonic() + (float(limit) if limit else float("inf"))
        with self._changed:
            node = self._node(path)
            while _etag(node) == last and not self._closed and time.monotonic() < deadline:
                self._changed.wait(min(_LOOK, max(0.0, deadline - time.monotonic())))
                node = self._node(path)
        if self._closed:
            raise ApiError(503, "the machine is going down")
        return node

    def _credential(self, request: Request, account: str, what: str) -> Response:
        if account not in ("default", self._spec.service_account):
            raise ApiError(404, f"the machine has no service account '{account}'")
        if what == "identity":
            raise ApiError(501, "the local cloud issues no identity tokens")
        wanted = [scope for scope in _arg(request, "scopes").split(",") if scope]
        token = tokens.access_token(self._cloud, self._spec, wanted)
        return Response(200, tree.as_json(token).encode(), {"Content-Type": "application/json"})

    def _guest_attributes(self, request: Request, name: str) -> Response:
        if not self._guests_allowed(tree.build(self._cloud, self._spec, preempted=False)):
            raise ApiError(403, "Guest attributes endpoint access is disabled.")
        key, name = self._spec.key, name.strip("/")
        if request.verb == "PUT":
            guest_attributes.put(self._cloud, key, name, request.read())
            return _plain("")
        if request.verb == "DELETE":
            guest_attributes.delete(self._cloud, key, name)
            return _plain("")
        if request.verb != "GET":
            raise ApiError(405, f"{request.verb} is not allowed on guest attributes")
        found = guest_attributes.all_of(self._cloud, key)
        if name in found:
            return _plain(found[name])
        below = [other for other in found if other.startswith(f"{name}/" if name else "")]
        if not below and name:
            raise ApiError(404, f"guest attribute '{name}' was not found")
        names = {other.removeprefix(f"{name}/").partition("/") for other in below}
        return _plain("".join(f"{head}{slash}\n" for head, slash, _ in sorted(names)))

    def _guests_allowed(self, everything: tree.Tree) -> bool:
        own = everything["instance"]["attributes"].get("enable-guest-attributes")
        project = everything["project"]["attributes"].get("enable-guest-attributes", "")
        return str(project if own is None else own).upper() == "TRUE"


def _arg(request: Request, name: str) -> str:
    return request.query.get(name, [""])[-1]


def _etag(node: Any) -> str:
    return hashlib.sha256(tree.as_json(node).encode()).hexdigest()[:16]


def _plain(text: str, status: int = 200) -> Response:
    return Response(status, text.encode(), {"Content-Type": "application/text"})
