"""What this machine has of a TPU: chips, its slice, libtpu.

Reads files, and where there are TPU chips the metadata server. This is fast and claims no device:
a TPU's chips belong to the first process that opens them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from tpu_training.cluster.endpoint import DEFAULT_PORT, Addresses, LocalTpu, NoTpu, Workers
from tpu_training.cluster.google import metadata as read_metadata
from tpu_training.errors import InputError

# https://github.com/jax-ml/jax/blob/167d72d/jax/_src/hardware_utils.py; gVNIC has the same vendor.
_GOOGLE_VENDOR = "0x1ae0"
TPU_DEVICES = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}
# Setting one of these cuts this host's chips out of the slice on purpose.
_BOUNDS = ("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS")
# Google's example for tensorflow-tpu 2.19.1 sets these two:
# https://github.com/keras-team/keras-io/blob/master/examples/keras_rs/distributed_embedding_tf.py
_PLUG_IN = "NEXT_PLUGGABLE_DEVICE_USE_C_API"
_PLUG_IN_LIBRARY = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
# TensorFlow's own search: tensorflow/core/tpu/tpu_api_dlsym_initializer.cc.
_LIBRARY = "TPU_LIBRARY_PATH"
_LOAD = "TPU_LOAD_LIBRARY"

Metadata = Callable[[str], "str | None"]
"""Returns an entry of the metadata server; None if there is none."""


@dataclass(frozen=True)
class Machine:
    """TPU chips, and whether there is a libtpu for TensorFlow.

    `slice` is the slice of several hosts that this is one of.
    """

    tpu_chips: int = 0
    tpu_generation: str = ""
    has_libtpu: bool = False
    slice: Slice | None = None

    @property
    def has_usable_tpu(self) -> bool:
        """Whether there are chips and the library to drive them."""
        return self.tpu_chips > 0 and self.has_libtpu


def find_machine(
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    metadata: Metadata = read_metadata,
) -> Machine:
    """Detect this machine's TPU.

    `root` replaces the file system's root in tests, `metadata` the metadata server.
    """
    generations = _tpu_generations(root)
    return Machine(
        tpu_chips=len(generations),
        tpu_generation=generations[0] if generations else "",
        has_libtpu=_has_libtpu(root, environ),
        slice=find_slice(metadata, environ) if generations else None,
    )


def _tpu_generations(root: Path) -> list[str]:
    generations = []
    for vendor in sorted((root / "sys/bus/pci/devices").glob("*/vendor")):
        generation = TPU_DEVICES.get(_read(vendor.parent / "device"))
        if generation and _read(vendor) == _GOOGLE_VENDOR:
            generations.append(generation)
    return generations


def _has_libtpu(root: Path, environ: Mapping[str, str]) -> bool:
    """Return whether there is a libtpu for TensorFlow; the one for `compile` does not count."""
    if named := environ.get(_LIBRARY):
        return Path(named).exists()
    in_image = (root / "lib/libtpu.so", root / "usr/lib/libtpu.so")
    return any(path.exists() for path in in_image) or installed_library() is not None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


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
        "this machine", f"this machine has {chips} and libtpu, and no setting names another TPU"
    )


@dataclass(frozen=True)
class Slice:
    """A slice of several hosts: their addresses in worker order, and which of them this is.

    One program drives a slice, through the gRPC workers of all its hosts. A host's own chips do not
    train alone: libtpu waits for the other hosts, unless it is told of fewer
    (https://github.com/pytorch/xla/issues/7714).
    """

    worker: int
    hosts: tuple[str, ...]


def find_slice(metadata: Metadata, environ: Mapping[str, str]) -> Slice | None:
    """Return the slice; None on a TPU VM that is the only host, or is told that it is.

    Google Kubernetes Engine sets variables; the metadata of a TPU VM has `ID:ID:ADDRESS` for each
    host, as TensorFlow's own worker reads it (tensorflow/python/tools/grpc_tpu_worker.py).
    """
    if any(environ.get(name) for name in _BOUNDS):
        return None
    worker, hosts = environ.get("TPU_WORKER_ID", ""), environ.get("TPU_WORKER_HOSTNAMES", "")
    if not hosts:
        worker = metadata("instance/attributes/agent-worker-number") or ""
        hosts = metadata("instance/attributes/worker-network-endpoints") or ""
    addresses = tuple(host.strip().rpartition(":")[2] for host in hosts.split(","))
    if len(addresses) < 2 or not worker.isdecimal():
        return None
    return Slice(int(worker), addresses)


def drive_slice(slice_: Slice, target: LocalTpu | NoTpu) -> Addresses:
    """Return the workers of all hosts, which worker 0 drives.

    Raises:
        InputError: This is another worker, or `target` asks for this host's chips alone.
    """
    this = f"this is worker {slice_.worker} of a slice of {len(slice_.hosts)} hosts"
    if isinstance(target, LocalTpu):
        raise InputError(
            f"{target.source}=local: {this}, and its chips wait for those of the other hosts; "
            "omit local on worker 0, or name the slice (--tpu=NAME) on any machine, which drives "
            "all hosts"
        )
    if slice_.worker:
        raise InputError(
            f"{this}; start the training on worker 0, which drives all hosts; here it would take "
            "chips that worker 0 needs"
        )
    # Each host's runtime serves gRPC.
    workers = tuple(f"{host}:{DEFAULT_PORT}" for host in slice_.hosts)
    return Addresses(workers, "the metadata of this slice")


def installed_library() -> str | None:
    """Return the libtpu that pip installed with tensorflow-tpu.

    None with any other TensorFlow: that of a TPU VM's image comes with what Google's runtime sets.
    """
    try:
        importlib.metadata.version("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec("libtpu")
    folders = spec.submodule_search_locations if spec else None
    return str(Path(folders[0]) / "libtpu.so") if folders else None


def use_tpu_here(environ: MutableMapping[str, str], library: str | None) -> None:
    """Name the plug-in, unless the user has; `library` is the installed libtpu.

    TensorFlow loads it while it is imported. Seen with tensorflow-tpu 2.19.1 on a machine without a
    TPU: without the plug-in `initialize_tpu_system` ends with "RET_CHECK failure … *platform", with
    it libtpu looks for chips; the plug-in together with TPU_LOAD_LIBRARY=0 aborts the process.
    """
    if library is None or environ.get(_LOAD) == "0":
        return
    library = environ.get(_PLUG_IN_LIBRARY) or environ.get(_LIBRARY) or library
    environ.setdefault(_PLUG_IN, "true")
    environ.setdefault(_PLUG_IN_LIBRARY, library)
    environ.setdefault(_LIBRARY, library)


def leave_tpu_alone(environ: MutableMapping[str, str]) -> None:
    """Keep TensorFlow from loading libtpu, whose chips belong to the first process that does."""
    environ.setdefault(_LOAD, "0")
    if environ[_LOAD] == "0":
        for name in (_PLUG_IN, _PLUG_IN_LIBRARY):
            environ.pop(name, None)


def leave_tpu_to_jax(environ: MutableMapping[str, str]) -> None:
    """Lift, once TensorFlow is loaded, what `leave_tpu_alone` has set: libtpu reads it, too."""
    environ.pop(_LOAD, None)


def check_library(environ: Mapping[str, str]) -> None:
    """Raise InputError for settings with which TensorFlow would not get to this machine's TPU."""
    if environ.get(_LOAD) == "0":
        raise InputError(
            f"{_LOAD}=0 keeps TensorFlow from this machine's TPU, on which the training would "
            f"run; unset {_LOAD}, or name another TPU with --tpu"
        )
    library = environ.get(_PLUG_IN_LIBRARY)
    if library and not Path(library).exists():
        raise InputError(
            f"{_PLUG_IN_LIBRARY}={library!r} does not exist; unset it if pip installed "
            "tensorflow-tpu, which includes libtpu, else set the path of libtpu.so"
        )


def cache_folder(kind: str) -> Path:
    """Return the folder of what is compiled, where the user's system has caches."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tpu-stack" / kind
