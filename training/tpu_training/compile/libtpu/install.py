"""Where libtpu is, and which version."""

import importlib.util
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from tpu_training.compile.versions import versions
from tpu_training.errors import InputError


@dataclass(frozen=True)
class Libtpu:
    """An installed libtpu."""

    library: Path
    version: str

    @property
    def name(self) -> str:
        """Its name for messages, "libtpu 0.0.52"."""
        return f"libtpu {self.version}"


def find_libtpu() -> Libtpu:
    """Return the libtpu of this Python.

    Raises:
        InputError: It is not installed, or there is none for this machine.
    """
    system, machine = platform.system(), platform.machine()
    if (sys.platform, machine) != ("linux", "x86_64"):
        raise InputError(
            f"Google's TPU compiler, libtpu, exists for Linux x86-64 only and this is {system} "
            f"{machine}: compile in a container (docker run --platform linux/amd64 python:3.11) "
            "or in a CI job"
        )
    found = importlib.util.find_spec("libtpu")
    folders = list(found.submodule_search_locations or []) if found else []
    library = next((file for f in folders if (file := Path(f) / "libtpu.so").is_file()), None)
    if library is None:
        raise InputError(
            "Google's TPU compiler, libtpu, is not installed: pip install "
            "'tpu-stack-training[compile]' (about 150 MB, under Google Cloud's own terms: "
            "https://cloud.google.com/terms)"
        )
    return Libtpu(library, versions()["libtpu"] or "of unknown version")
