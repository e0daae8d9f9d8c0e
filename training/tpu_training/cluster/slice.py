"""Tell which slice this TPU VM is one host of.

One program drives a slice, through the gRPC workers of all its hosts. A host's own chips do not
train alone: libtpu waits for the other hosts, unless it is told of fewer
(https://github.com/pytorch/xla/issues/7714).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tpu_training.cluster.endpoint.target import DEFAULT_PORT, Addresses, LocalTpu, NoTpu
from tpu_training.errors import InputError

# Whoever sets one of these cuts this host's chips out of the slice on purpose.
_BOUNDS = ("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS")


class Attributes(Protocol):
    """The part of the metadata server that this module needs."""

    def get(self, path: str) -> str | None:
        """Return the text at `path`; None if there is none."""


@dataclass(frozen=True)
class Slice:
    """A slice of several hosts: their addresses in worker order, and which of them this is."""

    worker: int
    hosts: tuple[str, ...]

    @property
    def workers(self) -> tuple[str, ...]:
        """The `host:port` at which each host's runtime serves gRPC."""
        return tuple(f"{host}:{DEFAULT_PORT}" for host in self.hosts)


def find_slice(metadata: Attributes, environ: Mapping[str, str]) -> Slice | None:
    """Return the slice; None on a TPU VM that is the only host, or is told that it is.

    Google Kubernetes Engine sets variables; the metadata of a TPU VM has `ID:ID:ADDRESS` for each
    host, as TensorFlow's own worker reads it (tensorflow/python/tools/grpc_tpu_worker.py).
    """
    if any(environ.get(name) for name in _BOUNDS):
        return None
    worker, hosts = environ.get("TPU_WORKER_ID", ""), environ.get("TPU_WORKER_HOSTNAMES", "")
    if not hosts:
        worker = metadata.get("instance/attributes/agent-worker-number") or ""
        hosts = metadata.get("instance/attributes/worker-network-endpoints") or ""
    addresses = tuple(host.strip().rpartition(":")[2] for host in hosts.split(","))
    if len(addresses) < 2 or not worker.isdecimal():
        return None
    return Slice(int(worker), addresses)


def drive_slice(slice_: Slice, target: LocalTpu | NoTpu) -> Addresses:
    """Return the workers of all hosts, which worker 0 drives.

    Raises:
        InputError: This is another worker, or `target` asks for this host's chips alone.
    """
    here = f"this is worker {slice_.worker} of a slice of {len(slice_.hosts)} hosts"
    if isinstance(target, LocalTpu):
        raise InputError(
            f"{target.source}=local: {here}, and its chips wait for those of the others; leave "
            "local out on worker 0, or name the slice (--tpu=NAME) anywhere: that drives them all"
        )
    if slice_.worker:
        raise InputError(
            f"{here}: start the job on worker 0, which drives all of them; here it would take "
            "chips that worker 0 needs"
        )
    return Addresses(slice_.workers, "the metadata of this slice")
