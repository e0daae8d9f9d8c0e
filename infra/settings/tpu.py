"""Settings of the TPU."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from infra.settings.base import Section, StrEnum, Text


class Architecture(StrEnum):
    """How Google serves the TPU."""

    VM = "vm"
    NODE = "node"


class Capacity(StrEnum):
    """How a machine is paid for, and whether Google may take it away."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    PREEMPTIBLE = "preemptible"
    RESERVED = "reserved"


class QueueSettings(Section):
    """How long to queue for the TPU. All of it may be left out: `queued: {}`."""

    wait_minutes: float = Field(
        default=60.0,
        ge=1,
        le=7 * 24 * 60,
        description="How many minutes `pulumi up` waits for the TPU (1 to 10080). Then it fails; "
        "the request keeps its place, and the next `pulumi up` goes on waiting.",
    )
    valid_until: AwareDatetime | None = Field(
        default=None,
        description="When Google gives the request up, for example 2026-12-31T18:00:00Z. It "
        "queues for as long as it takes if that is not set.",
    )


class TpuSettings(Section):
    """The TPU: its size, its software and how it is bought."""

    accelerator_type: Text = Field(
        default="v2-8", description="Type and size of the TPU, for example v2-8 or v3-32."
    )
    runtime_version: Text | None = Field(
        default=None,
        description="Software of a TPU VM, for example tpu-vm-tf-2.18.0-pod-pjrt-v5p-and-below. "
        "With architecture vm only, and required there.",
    )
    tensorflow_version: Text | None = Field(
        default=None,
        description="TensorFlow of a classic TPU node, for example 2.12.1. "
        "With architecture node only, and required there.",
    )
    cidr_block: Text | None = Field(
        default=None,
        description="Private addresses of a classic TPU node, for example 10.240.1.0/29. "
        "With architecture node only; Google picks a range if it is not set.",
    )
    capacity: Capacity = Field(
        default=Capacity.ON_DEMAND,
        description="on-demand, spot (cheaper, can be taken away), preemptible (as spot, for at "
        "most 24 hours) or reserved.",
    )
    queued: QueueSettings | None = Field(
        default=None,
        description="A group of settings, which may be empty: {}. Queue for the TPU instead of "
        "failing when there is no capacity. With architecture vm only.",
    )
