"""Google's APIs as a training reaches them: credentials, metadata server, bucket, TPU.

All calls go through `tpu_core.google`, which loads neither TensorFlow nor any other library. A
TPU's name becomes its workers' addresses by the Cloud TPU API, once it is READY:
https://cloud.google.com/tpu/docs/reference/rest
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timezone
from functools import partial
from http import HTTPStatus
from urllib.error import HTTPError

import tpu_core.google as core
from tpu_core.bucket import Bucket
from tpu_core.google import GoogleError, Json, Tokens, metadata_server, transport
from tpu_core.tpu import TPU, phase_of, state_of
from tpu_training.cluster.endpoint import DEFAULT_PORT, Addresses, NamedTpu, Target, Wait, Workers
from tpu_training.errors import AccessError, EndpointError, InputError, TpuStateError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_METADATA_SECONDS = 5.0
_CURE = (
    "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS to a key "
    "file, or run on a VM with a service account and the cloud-platform scope"
)
# A new role or a newly enabled API takes up to about a minute to propagate, and the agent takes a
# moment to notice that a TPU is lost.
_GRACE_SECONDS = 60.0

_CURES = {
    "PREEMPTED": "it was preempted; `pulumi up` recreates it",
    "TERMINATED": "it was terminated; `pulumi up` recreates it",
    "FAILED": "its creation failed; look at its operation's error, delete it and create it again",
    "STOPPED": "it is stopped; start it with `gcloud compute tpus tpu-vm start NAME --zone ZONE`",
    "HIDDEN": "it is hidden; delete it and create it again",
}

_VERSION = re.compile(r"(?:^|tf-)(\d+\.\d+(?:\.\d+)?)")
_NEVER_HEALS = "ACCESS_TOKEN_SCOPE_INSUFFICIENT"

logger = logging.getLogger(__name__)


def metadata(path: str) -> str | None:
    """Return an entry of the metadata server; None without such an entry or such a server."""
    try:
        return metadata_server().read(path, _METADATA_SECONDS)[0].strip()
    except OSError:
        return None


def is_bucket(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path


def bucket(name: str, environ: Mapping[str, str] = os.environ) -> Bucket:
    """Return a bucket, with the token with which TensorFlow itself reaches it.

    TensorFlow takes this variable first (tsl/platform/cloud/google_auth_provider.cc).
    """
    token = environ.get("GOOGLE_AUTH_TOKEN_FOR_TESTING")
    tokens = Tokens(lambda: (token, math.inf)) if token else default_tokens()
    return Bucket(name, transport(tokens))


def default_tokens() -> Tokens:
    """Return tokens of Application Default Credentials, by google-auth if that is installed.

    Otherwise those of the VM's service account. They raise AccessError without credentials.
    """
    try:
        return _google_auth_tokens()
    except ImportError:
        return core.MachineToken(_entry)


def _entry(path: str) -> str:
    try:
        return metadata_server().read(f"instance/{path}", _METADATA_SECONDS)[0]
    except HTTPError as error:
        raise AccessError(f"no Google credentials found ({error}): {_CURE}") from error
    except OSError as error:
        raise AccessError(f"no Google credentials found: {_CURE}") from error


def _google_auth_tokens() -> Tokens:
    from google.auth import default, exceptions
    from google.auth.transport.requests import Request

    try:
        credentials, _ = default(scopes=[SCOPE])
    except exceptions.GoogleAuthError as error:
        raise AccessError(f"no Google credentials found ({error}): {_CURE}") from error

    def fetch() -> tuple[str, float]:
        try:
            credentials.refresh(Request())  # type: ignore[no-untyped-call]
        except exceptions.GoogleAuthError as error:
            raise AccessError(f"Google refuses the credentials ({error}): {_CURE}") from error
        if credentials.expiry is None:
            return str(credentials.token), math.inf
        # google-auth gives a UTC time without a zone.
        expiry = credentials.expiry.replace(tzinfo=timezone.utc)
        return str(credentials.token), expiry.timestamp() - time.time()

    return Tokens(fetch)


class Lost(TpuStateError):
    """Google took the TPU away. The agent, or a person, may recreate it."""


def resolve(target: Target, wait: Wait, waiting: Callable[[], None] = lambda: None) -> Workers:
    """Replace a TPU's name by its workers' addresses once it is READY; keep other targets.

    Calls `waiting` whenever it has to wait.
    """
    if not isinstance(target, NamedTpu):
        return target
    name = complete_name(target, metadata)
    read = partial(read_tpu, core.Client(transport(default_tokens())))
    tpu = wait_until_ready(read, name, wait, waiting)
    return addresses_of(read, name, tpu, f"{target.source}={target.name}")


def addresses_of(read: Read, name: TpuName, tpu: Tpu, source: str) -> Addresses:
    """Return the addresses of `tpu`, which look its name up again whenever they are asked to.

    They stay the same while that finds no TPU that is READY.
    """

    def look_up() -> Addresses:
        with contextlib.suppress(NotYet, DeniedForNow, Lost):
            return addresses_of(read, name, _ready(look_for(read, name), name), source)
        return found

    found = Addresses(tpu.addresses, source, tpu.tensorflow, look_up)
    return found


def complete_name(target: NamedTpu, metadata: Callable[[str], str | None]) -> TpuName:
    """Complete the name with project and zone from the metadata server.

    Raises:
        InputError: There is no such server either; the message names the missing flags.
    """
    project = target.project or metadata("project/project-id")
    # It has projects/NUMBER/zones/ before its name.
    zone = target.zone or (metadata("instance/zone") or "").rpartition("/")[2]
    missing = [
        f"--tpu-{part} (or TPU_{part.upper()})"
        for part, value in (("project", project), ("zone", zone))
        if not value
    ]
    if not project or not zone:
        raise InputError(
            f"the TPU {target.name} from {target.source} can't be looked up without "
            f"{' and '.join(missing)}; pass them, or the address itself as --tpu=grpc://HOST:PORT"
        )
    return TpuName(project, zone, target.name)


def wait_until_ready(
    read: Read, name: TpuName, wait: Wait, waiting: Callable[[], None] = lambda: None
) -> Tpu:
    """Return the TPU once it is READY and has addresses; log each unsuccessful try.

    Calls `waiting` after each of them.

    Raises:
        TpuStateError: At once, for a state that waiting does not change; after a minute for a TPU
            that was taken away and not recreated.
        AccessError: After a minute of denied requests.
        EndpointError: At the deadline.
    """
    problem: Exception | None = None
    for attempt in wait.attempts():
        try:
            return _ready(look_for(read, name), name)
        except (NotYet, DeniedForNow, Lost) as error:
            if not isinstance(error, NotYet) and attempt.elapsed >= _GRACE_SECONDS:
                raise
            problem = error
        logger.info("endpoint: %s (%s)", problem, attempt)
        waiting()
    if isinstance(problem, Lost):
        raise problem
    raise EndpointError(
        f"gave up after {wait.deadline:.0f} s: {problem}; check name, zone and project with "
        "`gcloud compute tpus tpu-vm list --zone ZONE`, or raise --connect_tries"
    )


def _ready(tpu: Tpu, name: TpuName) -> Tpu:
    """Return `tpu`. Raises NotYet before it is ready, TpuStateError when it is not to be."""
    if cure := _CURES.get(tpu.state):
        kind = Lost if phase_of(tpu.state) == "lost" else TpuStateError
        raise kind(f"the TPU {name.name} in {name.zone} is {tpu.state}: {cure}")
    if tpu.state != "READY":
        raise NotYet(f"the TPU {name.name} is {tpu.state}, not READY")
    if not tpu.addresses:
        raise NotYet(f"the TPU {name.name} has no address yet")
    if tpu.health not in ("", "HEALTHY", "HEALTH_UNSPECIFIED"):
        logger.warning("endpoint: the TPU %s is READY but its health is %s", name.name, tpu.health)
    return tpu


class NotYet(EndpointError):
    """The API may answer later: not found, 429, 5xx, connection lost."""


class NotThere(NotYet):
    """The zone has no such TPU."""


class DeniedForNow(AccessError):
    """A 403 that goes away once a new role or a newly enabled API has propagated."""


@dataclass(frozen=True)
class TpuName:
    """A TPU's full name. It may be in one of several zones, with commas between them."""

    project: str
    zone: str
    name: str

    def __str__(self) -> str:
        """Return the resource's path in the API."""
        return f"projects/{self.project}/locations/{self.zone}/nodes/{self.name}"


@dataclass(frozen=True)
class Tpu:
    """A TPU as the API describes it. `addresses` are `host:port` in worker order."""

    state: str
    addresses: tuple[str, ...]
    health: str
    tensorflow: str | None

    @classmethod
    def from_api(cls, node: Json) -> Tpu:
        """Read a v1 or v2 Node; `health` may be missing (tensorflow/tpu#590)."""
        version = _VERSION.search(node.get("tensorflowVersion") or node.get("runtimeVersion") or "")
        return cls(
            state=state_of(node),
            addresses=tuple(
                f"{endpoint['ipAddress']}:{endpoint.get('port') or DEFAULT_PORT}"
                for endpoint in node.get("networkEndpoints", ())
                if endpoint.get("ipAddress")
            ),
            health=node.get("health", ""),
            tensorflow=version[1] if version else None,
        )


Read = Callable[[TpuName], Tpu]
"""Reads one TPU; raises as `read_tpu` does."""


def read_tpu(client: core.Client, name: TpuName) -> Tpu:
    """Return the TPU called `name`. Only API v1 may know a classic TPU node.

    Raises:
        NotYet, DeniedForNow: Asking again may help.
        AccessError, EndpointError: Asking again will not help.
    """
    for version in ("v2", "v1"):
        try:
            status, answer = client.call("GET", f"{TPU}{version}/{name}", None)
        except GoogleError as error:
            raise NotYet(f"the Cloud TPU API doesn't answer ({error})") from error
        if status != HTTPStatus.NOT_FOUND:
            break
    if status == HTTPStatus.OK:
        return Tpu.from_api(answer)
    raise _error_of(status, answer, name)


def look_for(read: Read, name: TpuName) -> Tpu:
    """Return the TPU in the first of its zones that has it; raises as `read_tpu` does."""
    for zone in name.zone.split(","):
        with contextlib.suppress(NotThere):
            return read(TpuName(name.project, zone.strip(), name.name))
    raise NotThere(_nowhere(name))


def _nowhere(name: TpuName) -> str:
    return f"there is no TPU {name.name} in zone {name.zone} of project {name.project}"


def _error_of(status: int, answer: Json, name: TpuName) -> EndpointError | AccessError:
    text, why = core.message(answer), core.reasons(answer)
    if status == HTTPStatus.NOT_FOUND:
        return NotThere(_nowhere(name))
    if status == HTTPStatus.UNAUTHORIZED:
        return AccessError(f"the Cloud TPU API refuses the credentials ({text})")
    if core.may_pass(status):
        return NotYet(f"the Cloud TPU API answers {status} ({text})")
    if status != HTTPStatus.FORBIDDEN:
        return EndpointError(f"the Cloud TPU API answers {status} for {name} ({text})")
    if _NEVER_HEALS in why or "insufficient authentication scopes" in text:
        return AccessError(
            "the VM's access scopes don't cover the Cloud TPU API; stop the VM, set the scope "
            "https://www.googleapis.com/auth/cloud-platform, and start it again"
        )
    if "SERVICE_DISABLED" in why:
        return DeniedForNow(
            f"the Cloud TPU API is disabled in project {name.project}; run `gcloud services "
            f"enable tpu.googleapis.com --project={name.project}`"
        )
    return DeniedForNow(
        f"permission tpu.nodes.get on {name} denied ({text}); grant roles/tpu.viewer in project "
        f"{name.project} to the account that runs the training"
    )
