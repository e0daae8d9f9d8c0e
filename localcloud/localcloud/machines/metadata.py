"""The metadata server of a machine: who it is, its settings, its tokens, its guest attributes.

Source: cloud.google.com/compute/docs/metadata/querying-metadata. Entries are kept as the server's
JSON has them, in camelCase; paths are in kebab-case, as callers write them.
"""

import hashlib
import json
import math
import re
import threading
import time
from typing import Any

from localcloud.core import ApiError, Cloud, MachineSpec, access, projects
from localcloud.core.call import CLOUD_PLATFORM, Principal, Request, Response

_ROOT = "/computeMetadata/v1"
_HOSTS = ("metadata.google.internal", "metadata", "169.254.169.254", "127.0.0.1", "localhost", "")
_GUEST = "instance/guest-attributes/"
_ALLOWED = "enable-guest-attributes"
_ACCOUNT = re.compile(r"instance/service-accounts/([^/]+)/(token|identity)")
# Seconds between two looks at the project's metadata, whose changes don't wake a waiting request.
_LOOK = 0.5
_LIFETIME = 3599.0
_GUEST_ATTRIBUTES = "guest-attributes"
# Limits: cloud.google.com/compute/docs/metadata/manage-guest-attributes.
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}/[A-Za-z0-9_.\-]{1,128}")
_LONGEST = 256 * 1024
Tree = dict[str, Any]
# Below these, names are the user's own and not turned from camelCase into kebab-case.
_VERBATIM = frozenset({"attributes", "serviceAccounts"})


class MetadataServer:
    """The metadata server of one running machine."""

    def __init__(self, cloud: Cloud, spec: MachineSpec) -> None:
        self._cloud = cloud
        self._spec = spec
        self._preempted = False
        self._closed = False
        self._changed = threading.Condition()

    def publish(self, *, spec: MachineSpec | None = None, preempted: bool = False) -> None:
        """Change what the server says and wake those who wait for a change."""
        with self._changed:
            self._spec = spec or self._spec
            # No way leads back: a preempted machine gets a new server with its next boot.
            self._preempted |= preempted
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
        response.headers |= {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
        return response

    def _answer(self, request: Request) -> Response:
        if request.host not in _HOSTS:
            raise ApiError(502, f"a local machine reaches {request.host} by https only")
        # Both keep a web page or a careless proxy on the machine from reading its token.
        if request.headers.get("X-Forwarded-For"):
            raise ApiError(403, "requests with the header X-Forwarded-For are refused")
        if request.headers.get("Metadata-Flavor", "").lower() != "google":
            raise ApiError(403, "missing required header: Metadata-Flavor:Google")
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
        if _is_folder(node) and not recursive and path and not path.endswith("/"):
            location = f"http://{request.headers.get('Host', 'metadata.google.internal')}"
            return Response(301, b"", {"Location": f"{location}{request.path}/"})
        if _arg(request, "wait_for_change").lower() == "true":
            node = self._wait(request, path, node)
        if recursive or (_arg(request, "alt") == "json" and not _is_folder(node)):
            kind, body = "json", _as_json(node)
        elif _is_folder(node):
            verbatim = _camel(path.strip("/").rpartition("/")[2]) in _VERBATIM
            kind, body = "text", _listing(node, verbatim)
        else:
            # Words of a list are given one a line.
            words = node if isinstance(node, list) else [node]
            kind, body = "text", "\n".join(map(str, words))
        headers = {"ETag": _etag(node), "Content-Type": f"application/{kind}"}
        return Response(200, body.encode(), headers)

    def _node(self, path: str) -> Any:
        everything = _tree(self._cloud, self._spec, self._preempted)
        if self._guests_allowed(everything):
            everything["instance"]["guestAttributes"] = {}
        try:
            return _find(everything, path)
        except KeyError:
            raise ApiError(404, f"the metadata server has no {_ROOT}/{path}") from None

    def _wait(self, request: Request, path: str, node: Any) -> Any:
        """Return the entry once it differs from `last_etag`, or after `timeout_sec` as it is."""
        last = _arg(request, "last_etag") or _etag(node)
        limit = _arg(request, "timeout_sec")
        if limit and not limit.isdigit():
            raise ApiError(400, f"timeout_sec={limit} is not a number of seconds")
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
        token = access_token(self._cloud, self._spec, wanted)
        return Response(200, _as_json(token).encode(), {"Content-Type": "application/json"})

    def _guest_attributes(self, request: Request, name: str) -> Response:
        if not self._guests_allowed(_tree(self._cloud, self._spec, False)):
            raise ApiError(403, "Guest attributes endpoint access is disabled.")
        if request.verb != "PUT":
            raise ApiError(501, "a local machine can only write guest attributes")
        _write_guest_attribute(self._cloud, self._spec.key, name.strip("/"), request.read())
        return _plain("")

    def _guests_allowed(self, everything: Tree) -> bool:
        """Return whether metadata allows them; the machine's outweighs the project's."""
        both = (everything[of]["attributes"].get(_ALLOWED) for of in ("instance", "project"))
        first = next((value for value in both if value is not None), "")
        return str(first).upper() == "TRUE"


def _arg(request: Request, name: str) -> str:
    return request.query.get(name, [""])[-1]


def _etag(node: Any) -> str:
    # Of the value alone, so that a client which asks again with it waits for the next change.
    return hashlib.sha256(_as_json(node).encode()).hexdigest()[:16]


def _plain(text: str, status: int = 200) -> Response:
    return Response(status, text.encode(), {"Content-Type": "application/text"})


def access_token(cloud: Cloud, spec: MachineSpec, wanted: list[str]) -> dict[str, object]:
    """Return the token endpoint's answer.

    Args:
        spec: the machine that asks.
        wanted: scopes to narrow the token to; all of the machine's when empty.

    Raises:
        ApiError: 404 when the account is gone or disabled, 400 when the machine has none of the
            wanted scopes.
    """
    email = spec.service_account
    if email is None:
        raise ApiError(404, "the machine has no service account")
    problem = access.account_problem(cloud, email)
    if problem:
        raise ApiError(404, problem)
    scopes = frozenset(wanted or spec.scopes)
    if CLOUD_PLATFORM not in spec.scopes:
        scopes &= frozenset(spec.scopes)
    if wanted and not scopes:
        granted = ", ".join(spec.scopes)
        raise ApiError(
            400, f"none of the scopes {', '.join(wanted)} is among the machine's: {granted}"
        )
    principal = Principal(f"serviceAccount:{email}", scopes)
    token = cloud.token(principal, lifetime=_LIFETIME, machine=spec.key)
    return {"access_token": token, "expires_in": math.floor(_LIFETIME), "token_type": "Bearer"}


def guest_attributes(cloud: Cloud, key: str) -> dict[str, str]:
    """Return all guest attributes of the machine `key`, by `namespace/key`."""
    return dict(sorted((cloud.store.get(_GUEST_ATTRIBUTES, key) or {}).items()))


def _write_guest_attribute(cloud: Cloud, key: str, name: str, value: bytes) -> None:
    """Write the attribute `namespace/key`; 400 for what Google refuses."""
    if not _ATTRIBUTE_NAME.fullmatch(name):
        raise ApiError(400, f"guest attribute '{name}' is not of the form namespace/key")
    if len(value) > _LONGEST:
        raise ApiError(400, f"guest attribute '{name}' is longer than {_LONGEST} bytes")
    with cloud.store.locked():
        record = cloud.store.get(_GUEST_ATTRIBUTES, key) or {}
        record[name] = value.decode("utf-8", "replace")
        cloud.store.put(_GUEST_ATTRIBUTES, key, record)


def forget_guest_attributes(cloud: Cloud, key: str) -> None:
    """Delete all guest attributes of the machine."""
    cloud.store.delete(_GUEST_ATTRIBUTES, key)


def _tree(cloud: Cloud, spec: MachineSpec, preempted: bool) -> Tree:
    """Return all entries, named as in the server's JSON; `spec.details` has the last word."""
    number = projects.number(spec.project)
    instance: Tree = {
        "attributes": dict(spec.attributes),
        "cpuPlatform": "Intel Broadwell",
        "description": "",
        "disks": [],
        "hostname": f"{spec.name}.{spec.zone}.c.{spec.project}.internal",
        "id": spec.number,
        "image": "",
        "machineType": f"projects/{number}/machineTypes/{spec.machine_type}",
        "maintenanceEvent": "NONE",
        "name": spec.name,
        "networkInterfaces": [],
        "preempted": "TRUE" if preempted else "FALSE",
        "scheduling": {
            "automaticRestart": "FALSE" if spec.preemptible else "TRUE",
            "onHostMaintenance": "TERMINATE" if spec.preemptible else "MIGRATE",
            "preemptible": "TRUE" if spec.preemptible else "FALSE",
        },
        "serviceAccounts": {},
        "tags": list(spec.tags),
        "zone": f"projects/{number}/zones/{spec.zone}",
        **spec.details,
    }
    email = spec.service_account
    if email is not None:
        account = {"aliases": ["default"], "email": email, "scopes": list(spec.scopes)}
        instance["serviceAccounts"] = {"default": account, email: account}
    common = projects.common_metadata(cloud, spec.project)
    project = {
        "attributes": {item["key"]: item.get("value", "") for item in common},
        "numericProjectId": int(number),
        "projectId": spec.project,
    }
    return {"instance": instance, "project": project}


def _find(tree: Any, path: str) -> Any:
    """Return the entry at `path`; KeyError when there is none."""
    node = tree
    verbatim = False
    for part in filter(None, path.split("/")):
        if isinstance(node, list):
            # A list of plain words, such as tags, is one value.
            if not part.isdigit() or int(part) >= len(node) or not _is_folder(node):
                raise KeyError(path)
            node = node[int(part)]
            continue
        name = part if verbatim else _camel(part)
        if not isinstance(node, dict) or name not in node:
            raise KeyError(path)
        node, verbatim = node[name], name in _VERBATIM
    return node


def _is_folder(node: Any) -> bool:
    """Return whether an entry has entries below it.

    A request for one without the slash at its end is redirected, as by Google's server.
    """
    if isinstance(node, list):
        return any(isinstance(item, dict) for item in node)
    return isinstance(node, dict)


def _listing(node: Any, verbatim: bool) -> str:
    """Return the names below an entry, one a line, folders with a slash."""
    if isinstance(node, list):
        return "".join(f"{index}/\n" for index in range(len(node)))
    names = {key if verbatim else _kebab(key): child for key, child in sorted(node.items())}
    return "".join(f"{name}{'/' if _is_folder(child) else ''}\n" for name, child in names.items())


def _as_json(node: Any) -> str:
    return json.dumps(node, separators=(",", ":"))


def _camel(name: str) -> str:
    """Return `network-interfaces` as `networkInterfaces`."""
    return re.sub(r"-(\w)", lambda found: found[1].upper(), name)


def _kebab(name: str) -> str:
    """Return `networkInterfaces` as `network-interfaces`."""
    return re.sub(r"([A-Z])", lambda found: f"-{found[1].lower()}", name)
