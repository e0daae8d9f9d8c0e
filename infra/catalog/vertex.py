"""What Vertex AI offers for custom jobs: its TPUs, their quotas, its containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from infra.catalog import Catalog
from infra.catalog.tables import read

_FILE = Path(__file__).parent / "vertex.yaml"


@dataclass(frozen=True)
class ManagedTpu:
    """A TPU of a custom job.

    Attributes:
        machine: the machineSpec of a worker pool.
        quota: the metric that it counts against, without the API's name.
        spot_quota: that of its spot capacity.
        hosts: how many machines it has, each of which runs the container.
        tensorflow: Google's own container with TensorFlow for it; None if there is none.
    """

    machine: Mapping[str, Any]
    quota: str
    spot_quota: str
    hosts: int = 1
    tensorflow: str | None = None


@lru_cache(maxsize=1)
def managed_tpus() -> Mapping[str, ManagedTpu]:
    """Return the TPUs by their type, such as v2-8."""
    return {name: ManagedTpu(**about) for name, about in read(_FILE)["tpus"].items()}


@lru_cache(maxsize=1)
def regions() -> tuple[str, ...]:
    """Return where custom jobs can have TPUs: the regions where Cloud TPU has one of theirs."""
    there = Catalog().accelerators
    zones = {zone for name in managed_tpus() for zone in there[name].zones}
    return tuple(sorted({zone.rpartition("-")[0] for zone in zones}))


def why_not_offered(kind: str) -> str:
    """Return why a type of TPU is not among them."""
    reasons: Mapping[str, str] = read(_FILE)["notOffered"]
    return reasons.get(kind.rpartition("-")[0], "there is no such TPU")


def why_not_spot(tpu: ManagedTpu) -> str | None:
    """Return why a TPU can't be a spot one; None if it can."""
    spot = read(_FILE)["spot"]
    return str(spot["why"]) if tpu.hosts > spot["mostHosts"] else None


def plain_image() -> str:
    """Return the container for jobs that bring their framework along."""
    return str(read(_FILE)["plainImage"])
