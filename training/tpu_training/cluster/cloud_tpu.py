"""Resolve a TPU's name to its workers' addresses by the Cloud TPU API, once it is READY.

Reference: https://cloud.google.com/tpu/docs/reference/rest
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from tpu_core.google import Client, GoogleError, Json, may_pass, message, reasons
from tpu_core.tpu import TPU, phase_of, state_of
from tpu_training.cluster import google
from tpu_training.cluster.endpoint import (
    DEFAULT_PORT,
    Addresses,
    LocalTpu,
    NamedTpu,
    Target,
    Wait,
    Workers,
)
from tpu_training.cluster.machine import Machine, Metadata, drive_slice
from tpu_training.errors import AccessError, EndpointError, InputError, TpuStateError

# A new role or a newly enabled API takes up to about a minute to propagate, and the agent takes a
# moment to notice that a TPU is lost.
_GRACE_SECONDS = 60.0

_CURES = {
    "PREEMPTED": "it was preempted: `pulumi up` deletes it and creates it again",
    "TERMINATED": "it was terminated: `pulumi up` deletes it and creates it again",
    "FAILED": "its creation failed: look at its operation's error, delete it and create it again",
    "STOPPED": "it is stopped: start it with `gcloud compute tpus tpu-vm start NAME --zone ZONE`",
    "HIDDEN": "it is hidden: delete it and create it again",
}

_VERSION = re.compile(r"(?:^|tf-)(\d+\.\d+(?:\.\d+)?)")
_NEVER_HEALS = "ACCESS_TOKEN_SCOPE_INSUFFICIENT"

logger = logging.getLogger(__name__)


class Lost(TpuStateError):
    """Google took the TPU away. The agent, or a person, may recreate it."""


def resolve(target: Target, wait: Wait, waiting: Callable[[], None] = lambda: None) -> Workers:
    """Replace a TPU's name by its workers' addresses once it is READY; keep other targets.

    Calls `waiting` whenever it has to wait.
    """
    if not isinstance(target, NamedTpu):
        return target
    name = complete_name(target, google.metadata)
    read = partial(read_tpu, Client(google.transport()))
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


def choose_local(workers: Workers, machine: Machine, split_cpu: bool) -> Workers:
    """If no TPU is named, choose this machine's own, unless `split_cpu` asks for its CPU.

    That of one host of a slice is the slice. Raises InputError if this host can't drive it.
    """
    if isinstance(workers, Addresses) or split_cpu:
        return workers
    if machine.slice:
        return drive_slice(machine.slice, workers)
    if isinstance(workers, LocalTpu) or not machine.has_usable_tpu:
        return workers
    chips = f"{machine.tpu_chips} TPU chips ({machine.tpu_generation})"
    return LocalTpu(
        "this machine", f"this machine has {chips} and libtpu, and nothing else is named"
    )


def complete_name(target: NamedTpu, metadata: Metadata) -> TpuName:
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
            f"{' and '.join(missing)}; give them, or the address itself as --tpu=grpc://HOST:PORT"
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

    @property
    def in_each_zone(self) -> tuple[TpuName, ...]:
        """The name in one zone after the other."""
        zones = self.zone.split(",")
        return tuple(TpuName(self.project, zone.strip(), self.name) for zone in zones)

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


def read_tpu(client: Client, name: TpuName) -> Tpu:
    """Return the TPU called `name`. Only API v1 may know a classic TPU node.

    Raises:
        NotYet, DeniedForNow: Asking again may help.
        AccessError, EndpointError: Asking again will not help.
    """
    for version in ("v2", "v1"):
        try:
            status, answer = client.call("GET", f"{TPU}{version}/{name}", None)
        except GoogleError as error:
            raise NotYet(f"the Cloud TPU API does not answer ({error})") from error
        if status != HTTPStatus.NOT_FOUND:
            break
    if status == HTTPStatus.OK:
        return Tpu.from_api(answer)
    raise _error_of(status, answer, name)


def look_for(read: Read, name: TpuName) -> Tpu:
    """Return the TPU in the first of its zones that has it; raises as `read_tpu` does."""
    for one in name.in_each_zone:
        with contextlib.suppress(NotThere):
            return read(one)
    raise NotThere(_nowhere(name))


def _nowhere(name: TpuName) -> str:
    return f"there is no TPU {name.name} in zone {name.zone} of project {name.project}"


def _error_of(status: int, answer: Json, name: TpuName) -> EndpointError | AccessError:
    text, why = message(answer), reasons(answer)
    if status == HTTPStatus.NOT_FOUND:
        return NotThere(_nowhere(name))
    if status == HTTPStatus.UNAUTHORIZED:
        return AccessError(f"the Cloud TPU API refuses the credentials ({text})")
    if may_pass(status):
        return NotYet(f"the Cloud TPU API answers {status} ({text})")
    if status != HTTPStatus.FORBIDDEN:
        return EndpointError(f"the Cloud TPU API answers {status} for {name} ({text})")
    if _NEVER_HEALS in why or "insufficient authentication scopes" in text:
        return AccessError(
            "the VM's access scopes do not cover the Cloud TPU API: stop the VM, give it the scope "
            "https://www.googleapis.com/auth/cloud-platform, and start it again"
        )
    if "SERVICE_DISABLED" in why:
        return DeniedForNow(
            f"the Cloud TPU API is disabled in project {name.project}: run "
            f"`gcloud services enable tpu.googleapis.com --project={name.project}`"
        )
    return DeniedForNow(
        f"permission tpu.nodes.get on {name} denied ({text}): grant roles/tpu.viewer in "
        f"project {name.project} to the account that runs the training"
    )
