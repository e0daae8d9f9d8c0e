"""Settings of the VM that runs the training."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section, StrEnum, Text
from infra.settings.timeouts import Timeouts


class VmCapacity(StrEnum):
    """How the VM is paid for, and whether Google may take it away."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    PREEMPTIBLE = "preemptible"


class TerminationAction(StrEnum):
    """What Google does with a spot VM that it takes away."""

    STOP = "stop"
    DELETE = "delete"


class HostMaintenance(StrEnum):
    """What Google does with the VM while it maintains the machine below."""

    MIGRATE = "migrate"
    TERMINATE = "terminate"


class DiskType(StrEnum):
    """Kinds of boot disk."""

    BALANCED = "pd-balanced"
    STANDARD = "pd-standard"
    SSD = "pd-ssd"


class ShieldedSettings(Section):
    """Shielded VM, which protects the VM's software against unnoticed changes."""

    secure_boot: bool = True
    """Boot only signed software; your own drivers need false."""
    vtpm: bool = True
    """A virtual trusted platform module."""
    integrity_monitoring: bool = True
    """Compare every boot with the first. Needs `vm.shielded.vtpm`."""


class InstanceGroupSettings(Section):
    """A managed instance group of one. All of it may be left out: `instanceGroup: {}`."""

    initial_delay_seconds: int = Field(default=300, ge=0, le=3600)
    """Seconds until a new VM must answer its health check (0 to 3600)."""
    check_interval_seconds: int = Field(default=30, ge=5, le=300)
    """Seconds between two health checks (5 to 300)."""
    failed_checks: int = Field(default=3, ge=1, le=10)
    """How many checks in a row must fail before the VM is recreated (1 to 10)."""


class VmTimeoutSettings(Timeouts):
    """How many minutes an operation on the VM may take."""


class VmSettings(Section):
    """The VM: it drives the TPU by gRPC, so it can be small if the model fits into its memory."""

    machine_type: Text = "n1-standard-2"
    """Compute Engine machine type, for example n2-highmem-8."""
    capacity: VmCapacity = VmCapacity.ON_DEMAND
    """on-demand, spot (cheaper, can be stopped by Google at any moment) or preemptible (like spot,
    for at most 24 hours).
    """
    termination_action: TerminationAction | None = None
    """What Google does with a spot VM that it takes away: stop (the default), or delete. With
    `vm.capacity: spot` only.
    """
    host_maintenance: HostMaintenance | None = None
    """What Google does during maintenance of the VM's host: migrate (the default) or terminate.
    With `vm.capacity: on-demand` only; other VMs are terminated.
    """
    instance_group: InstanceGroupSettings | None = None
    """A group of settings, which may be empty: {}. Let a managed instance group keep the VM: after
    a preemption, deletion or failure it comes back and resumes training.
    """
    image: Text = "debian-cloud/debian-12"
    """Boot image as PROJECT/FAMILY; the start-up script is written for Debian 12."""
    boot_disk_gib: int = Field(default=50, ge=20, le=65536)
    """Size of the boot disk in GiB (20 to 65536)."""
    boot_disk_type: DiskType = DiskType.BALANCED
    """pd-balanced, pd-standard or pd-ssd."""
    keep_boot_disk: bool = False
    """Keep the boot disk when the VM is deleted or replaced; the next VM boots from it, with
    everything that was installed. `pulumi destroy` deletes it.
    """
    public_ip: bool = False
    """Give the VM a public address. Not needed for the training."""
    os_login: bool = True
    """Let IAM decide who may log in by SSH, instead of keys in metadata."""
    serial_port_logging: bool = True
    """Send the serial port's output to Cloud Logging, for `tpustack logs`."""
    shielded: ShieldedSettings = ShieldedSettings()
    """Shielded VM."""
    ops_agent: bool = False
    """Install Google's Ops Agent for memory and disk metrics and for logs. If that fails, training
    goes on without it.
    """
    timeouts: VmTimeoutSettings = VmTimeoutSettings()
    """How long operations on the VM may take."""
