"""Settings of the VM that runs the training."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section, StrEnum, Text


class VmCapacity(StrEnum):
    """How the VM is paid for."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


class DiskType(StrEnum):
    """Kinds of boot disk."""

    BALANCED = "pd-balanced"
    STANDARD = "pd-standard"
    SSD = "pd-ssd"


class VmSettings(Section):
    """The VM: it drives the TPU by gRPC, so it can be small if the model fits into its memory."""

    machine_type: Text = Field(
        default="n1-standard-2",
        description="Compute Engine machine type, for example n2-highmem-8.",
    )
    capacity: VmCapacity = Field(
        default=VmCapacity.ON_DEMAND,
        description="on-demand, or spot (cheaper, can be stopped by Google at any moment).",
    )
    image: Text = Field(
        default="debian-cloud/debian-12",
        description="Boot image as PROJECT/FAMILY; the start-up script is written for Debian 12.",
    )
    boot_disk_gib: int = Field(
        default=50, ge=20, le=65536, description="Size of the boot disk in GiB (20 to 65536)."
    )
    boot_disk_type: DiskType = Field(
        default=DiskType.BALANCED, description="pd-balanced, pd-standard or pd-ssd."
    )
    public_ip: bool = Field(
        default=False, description="Give the VM a public address. Not needed for the training."
    )
