"""Detect this machine's CPUs, GPUs, TPU chips and TensorFlow.

Reads files, and where there are TPU chips the metadata server. This is fast and claims no device:
a TPU's chips belong to the first process that opens them.
"""

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpu_training.cluster.endpoint.metadata import MetadataServer
from tpu_training.cluster.library import installed_library
from tpu_training.cluster.slice import Attributes, Slice, find_slice

# https://github.com/jax-ml/jax/blob/167d72d/jax/_src/hardware_utils.py; gVNIC has the same vendor.
_GOOGLE_VENDOR = "0x1ae0"
_TPU_DEVICES = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly")


@dataclass(frozen=True)
class Machine:
    """Device counts, and in `libraries` the installed TensorFlow distributions' versions.

    `slice` is the slice of several hosts that this is one of.
    """

    cpus: int = 1
    gpus: int = 0
    tpu_chips: int = 0
    tpu_generation: str = ""
    has_libtpu: bool = False
    slice: Slice | None = None
    is_google_vm: bool = False
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_usable_tpu(self) -> bool:
        """Whether there are chips and the library to drive them."""
        return self.tpu_chips > 0 and self.has_libtpu

    @property
    def tensorflow(self) -> str | None:
        """TensorFlow's version; None if it is not installed."""
        return next((self.libraries[name] for name in _TENSORFLOWS if name in self.libraries), None)

    def __str__(self) -> str:
        """Format as `4 CPUs, no GPU, 4 TPU chips (v4)`."""
        generation = f" ({self.tpu_generation})" if self.tpu_generation else ""
        counts = [
            _count(self.cpus, "CPU"),
            _count(self.gpus, "GPU"),
            _count(self.tpu_chips, "TPU chip") + generation,
        ]
        return ", ".join(counts)


def find_machine(
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    metadata: Attributes | None = None,
) -> Machine:
    """Detect this machine's devices.

    `root` replaces the file system's root in tests, `metadata` the metadata server.
    """
    generations = _tpu_generations(root)
    metadata = metadata or MetadataServer.from_environment(environ)
    return Machine(
        cpus=_usable_cpus(),
        gpus=_gpus(root),
        tpu_chips=len(generations),
        tpu_generation=generations[0] if generations else "",
        has_libtpu=_has_libtpu(root, environ),
        slice=find_slice(metadata, environ) if generations else None,
        is_google_vm="Google" in _read(root / "sys/class/dmi/id/product_name"),
        libraries=_versions(_TENSORFLOWS),
    )


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus(root: Path) -> int:
    """Count NVIDIA's devices; /dev/dxg stands for one under WSL."""
    cards = [path for path in (root / "dev").glob("nvidia*") if path.name[6:].isdigit()]
    return len(cards) or int((root / "dev/dxg").exists())


def _tpu_generations(root: Path) -> list[str]:
    """Return the generation of each TPU chip on the PCI bus."""
    generations = []
    for vendor in sorted((root / "sys/bus/pci/devices").glob("*/vendor")):
        generation = _TPU_DEVICES.get(_read(vendor.parent / "device"))
        if generation and _read(vendor) == _GOOGLE_VENDOR:
            generations.append(generation)
    return generations


def _has_libtpu(root: Path, environ: Mapping[str, str]) -> bool:
    """Return whether there is a libtpu for TensorFlow; one for `compile` alone is none."""
    if named := environ.get("TPU_LIBRARY_PATH"):
        return Path(named).exists()
    in_image = (root / "lib/libtpu.so", root / "usr/lib/libtpu.so")
    return any(path.exists() for path in in_image) or installed_library() is not None


def _versions(distributions: tuple[str, ...]) -> dict[str, str]:
    versions = {}
    for name in distributions:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _count(number: int, what: str) -> str:
    if number == 0:
        return f"no {what}"
    return f"{number} {what}{'s' if number > 1 else ''}"
