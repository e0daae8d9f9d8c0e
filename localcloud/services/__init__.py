"""The emulated APIs, one package each."""

from __future__ import annotations

from localcloud.core.registry import Api
from localcloud.services import compute, storage, tpu


def all_apis() -> list[Api]:
    """Every API that the emulator serves, each with its handlers registered."""
    return [
        compute.API,
        storage.API,
        tpu.API,
    ]
