"""What Vertex AI offers for custom jobs: its TPUs, their quotas, its containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).parent / "vertex.yaml"


@dataclass(frozen=True)
class ManagedTpu:
    """A TPU on one host.

    Attributes:
        machine: the machineSpec of a worker pool.
        quota: the metric that it counts against, without the API's name.
        tensorflow: Google's own container with TensorFlow for it; None if there is none.
    """

    machine: Mapping[str, Any]
    quota: str
    tensorflow: str | None = None


@lru_cache(maxsize=1)
def managed_tpus() -> Mapping[str, ManagedTpu]:
    """Return the TPUs by their type, such as v2-8."""
    return {name: ManagedTpu(**about) for name, about in _catalog()["tpus"].items()}


def plain_image() -> str:
    """Return the container for jobs that bring their framework along."""
    return str(_catalog()["plainImage"])


@lru_cache(maxsize=1)
def _catalog() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return loaded
