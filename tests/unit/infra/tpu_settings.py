"""Strategies for the settings of a TPU, right and wrong ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from infra.catalog import Catalog
from infra.catalog.model import Accelerator

CATALOG = Catalog()
FULL = "https://www.googleapis.com/auth/cloud-platform"
SNAPSHOT = "projects/some-project/global/snapshots/s"

DISKS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b", "Scratch", "a" * 40]),
        "sizeGib": st.integers(9, 1000),
        "type": st.sampled_from(["pd-balanced", "hyperdisk-balanced", "hyperdisk-ml"]),
        "snapshot": st.sampled_from([SNAPSHOT, "s"]),
        "source": st.sampled_from(["projects/some-project/zones/us-central1-b/disks/d", "d"]),
        "mode": st.sampled_from(["read-write", "read-only"]),
    },
)
QUEUES = st.fixed_dictionaries(
    {},
    optional={
        "waitMinutes": st.floats(1, 10080),
        "reservation": st.sampled_from(
            ["ours", "Ours", "projects/p/locations/us-central1-b/reservations/theirs"]
        ),
        "guaranteedHours": st.floats(0.1, 100),
        "workload": st.sampled_from(["throughput", "availability"]),
    },
)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "capacity": st.sampled_from(["on-demand", "spot", "preemptible", "reserved"]),
    "slices": st.integers(1, 5) | st.integers(0, 257),
    "queued": QUEUES,
    "bootDiskGib": st.integers(90, 300),
    "externalIps": st.booleans(),
    "tags": st.lists(st.sampled_from(["workers", "Workers", "a-"]), max_size=2),
    "scopes": st.lists(st.sampled_from([FULL, "cloud-platform"]), max_size=2),
    "secureBoot": st.booleans(),
    "autocheckpoint": st.booleans(),
    "timeouts": st.fixed_dictionaries(
        {}, optional={name: st.floats(0.5, 1500) for name in ("createMinutes", "deleteMinutes")}
    ),
}


@st.composite
def placed_tpus(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A zone and a TPU VM that it has, with a runtime of its family; everything else at random.

    Half of the disks are right, or nearly no stack with one would be.
    """
    tpu = draw(st.sampled_from(list(CATALOG.accelerators.values())))
    zone = draw(st.sampled_from(tpu.zones))
    runtimes = [
        runtime.name
        for runtime in CATALOG.runtimes.values()
        if tpu.family in runtime.families and runtime.serves_grpc
    ]
    options = draw(st.fixed_dictionaries({}, optional=OPTIONS))
    options["dataDisks"] = draw(st.lists(DISKS | _right_disks(tpu, zone), max_size=2))
    version = draw(st.sampled_from(runtimes))
    return zone, {"acceleratorType": tpu.name, "runtimeVersion": version, **options}


def _right_disks(tpu: Accelerator, zone: str) -> st.SearchStrategy[dict[str, Any]]:
    own = st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", "c"]), "sizeGib": st.integers(50, 100)},
        optional={"type": st.sampled_from(tpu.disk_types)},
    )
    copies = st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b", "c"]),
            "snapshot": st.just(SNAPSHOT),
            "mode": st.just("read-only"),
            "type": st.sampled_from(tpu.disk_types),
        }
    )
    given = st.fixed_dictionaries(
        {"source": st.just(f"projects/some-project/zones/{zone}/disks/{tpu.family}")},
        optional={"mode": st.just("read-only")},
    )
    return own | copies | given
