"""Resolve a TPU's name to its workers' addresses, once it is READY."""

import contextlib
import logging
from collections.abc import Callable

from tpu_training.cluster.endpoint.cloud_tpu import (
    CloudTpuApi,
    DeniedForNow,
    NotYet,
    Tpu,
    TpuName,
    TpuReader,
    look_for,
)
from tpu_training.cluster.endpoint.credentials import application_default_tokens
from tpu_training.cluster.endpoint.metadata import MetadataServer
from tpu_training.cluster.endpoint.target import Addresses, LocalTpu, NamedTpu, NoTpu, Target
from tpu_training.cluster.endpoint.wait import Wait
from tpu_training.cluster.machine import Machine
from tpu_training.cluster.slice import drive_slice
from tpu_training.errors import EndpointError, InputError, TpuStateError

# A new role or a newly enabled API takes up to about a minute to propagate, and who makes a lost
# TPU anew takes a moment to notice.
_GRACE_SECONDS = 60.0

_LOST = ("PREEMPTED", "TERMINATED")
_CURES = {
    "PREEMPTED": "it was preempted: `pulumi up` deletes it and creates it again",
    "TERMINATED": "it was terminated: `pulumi up` deletes it and creates it again",
    "FAILED": "its creation failed: look at its operation's error, delete it and create it again",
    "STOPPED": "it is stopped: start it with `gcloud compute tpus tpu-vm start NAME --zone ZONE`",
    "HIDDEN": "it is hidden: delete it and create it again",
}

logger = logging.getLogger(__name__)


class Lost(TpuStateError):
    """Google took the TPU away. The agent, or a person, may make it anew."""


def resolve(
    target: Target, wait: Wait, meanwhile: Callable[[], None] = lambda: None
) -> Addresses | LocalTpu | NoTpu:
    """Replace a TPU's name by its workers' addresses once it is READY; keep other targets.

    Calls `meanwhile` whenever it has to wait.
    """
    if not isinstance(target, NamedTpu):
        return target
    name = complete_name(target, MetadataServer.from_environment())
    api = CloudTpuApi(application_default_tokens())
    tpu = wait_until_ready(api, name, wait, meanwhile)
    return addresses_of(api, name, tpu, f"{target.source}={target.name}")


def addresses_of(api: TpuReader, name: TpuName, tpu: Tpu, source: str) -> Addresses:
    """Return the addresses of `tpu`, which look its name up again whenever they are asked to.

    They stay the same while that finds no TPU that is READY.
    """

    def look_up() -> Addresses:
        with contextlib.suppress(NotYet, DeniedForNow, Lost):
            return addresses_of(api, name, _ready(look_for(api, name), name), source)
        return here

    here = Addresses(tpu.addresses, source, tpu.tensorflow, look_up)
    return here


def choose_local(
    workers: Addresses | LocalTpu | NoTpu, machine: Machine, split_cpu: bool
) -> Addresses | LocalTpu | NoTpu:
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


def complete_name(target: NamedTpu, metadata: MetadataServer) -> TpuName:
    """Complete the name with project and zone from the metadata server.

    Raises:
        InputError: There is no such server either; the message names the missing flags.
    """
    project = target.project or metadata.project()
    zone = target.zone or metadata.zone()
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
    api: TpuReader, name: TpuName, wait: Wait, meanwhile: Callable[[], None] = lambda: None
) -> Tpu:
    """Return the TPU once it is READY and has addresses; log each unsuccessful try.

    Calls `meanwhile` after each of them.

    Raises:
        TpuStateError: At once, for a state that waiting does not change; after a minute for a TPU
            that was taken away and that nobody makes anew.
        AccessError: After a minute of denied requests.
        EndpointError: At the deadline.
    """
    problem: Exception | None = None
    for attempt in wait.attempts():
        try:
            return _ready(look_for(api, name), name)
        except (NotYet, DeniedForNow, Lost) as error:
            if not isinstance(error, NotYet) and attempt.elapsed >= _GRACE_SECONDS:
                raise
            problem = error
        logger.info("endpoint: %s (%s)", problem, attempt)
        meanwhile()
    if isinstance(problem, Lost):
        raise problem
    raise EndpointError(
        f"gave up after {wait.deadline:.0f} s: {problem}; check name, zone and project with "
        "`gcloud compute tpus tpu-vm list --zone ZONE`, or raise --connect_tries"
    )


def _ready(tpu: Tpu, name: TpuName) -> Tpu:
    """Return `tpu`. Raises NotYet before it is ready, TpuStateError when it is not to be."""
    if cure := _CURES.get(tpu.state):
        kind = Lost if tpu.state in _LOST else TpuStateError
        raise kind(f"the TPU {name.name} in {name.zone} is {tpu.state}: {cure}")
    if tpu.state != "READY":
        raise NotYet(f"the TPU {name.name} is {tpu.state}, not READY")
    if not tpu.addresses:
        raise NotYet(f"the TPU {name.name} has no address yet")
    if tpu.health not in ("", "HEALTHY", "HEALTH_UNSPECIFIED"):
        logger.warning("endpoint: the TPU %s is READY but its health is %s", name.name, tpu.health)
    return tpu
