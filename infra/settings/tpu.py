"""Settings of the TPU."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from infra.settings.base import Section, StrEnum, Text
from infra.settings.disks import DataDisk
from infra.settings.timeouts import Minutes, Timeouts

_ZONE_MINUTES = 15.0
FULL_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


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
    FLEX_START = "flex-start"


class Workload(StrEnum):
    """The purpose that Google's maintenance of several slices follows."""

    THROUGHPUT = "throughput"
    AVAILABILITY = "availability"


class QueueSettings(Section):
    """How long to queue for the TPU. All of it may be left out: `queued: {}`."""

    enabled: bool = True
    """Whether the TPU comes from the queue; false creates a spot TPU VM without it."""

    wait_minutes: float = Field(default=60.0, ge=1, le=7 * 24 * 60)
    """How many minutes `pulumi up` waits for the TPU (1 to 10080). Then it fails; the request keeps
    its place, and the next `pulumi up` goes on waiting.
    """
    fallback_zones: tuple[Text, ...] = ()
    """Further zones of the same region to queue in, one after the other, when `zone` has no
    capacity: both by `pulumi up` and, with `recovery.enabled`, by the VM. VM and bucket stay.
    """
    zone_minutes: float | None = Field(default=None, ge=0.1, le=7 * 24 * 60)
    """How many minutes a request waits in a zone before it goes on to the next one (0.1 to 10080;
    15 if it is not set). Its place in the queue of the zone is given up. With
    `tpu.queued.fallbackZones` only.
    """
    valid_until: AwareDatetime | None = None
    """When Google gives up the request, for example 2026-12-31T18:00:00Z. Without it, the request
    queues for as long as it takes.
    """
    reservation: Text | None = None
    """Reservation to take the TPU from: its name, or
    projects/PROJECT/locations/ZONE/reservations/NAME of another project. With `tpu.capacity:
    reserved` only; any reservation of the project if it is not set.
    """
    reservation_bound: bool = False
    """Whether the reservation was made in calendar mode, and so ends: Google deletes the TPU with
    it. With `tpu.queued.reservation` only.
    """
    # At most 7 days: docs.cloud.google.com/tpu/docs/request-using-flex-start, 2025-09-04.
    run_hours: float | None = Field(default=None, gt=0, le=168)
    """After how many hours Google deletes the TPU (at most 168: 7 days). With `tpu.capacity:
    flex-start` only, and required there.
    """
    guaranteed_hours: float | None = Field(default=None, gt=0, le=365 * 24)
    """Take only a TPU that is available for at least this many hours (at most 8760). With
    `tpu.capacity: on-demand` or `reserved` only.
    """
    workload: Workload | None = None
    """How Google maintains several slices: throughput (all at once, for a training that needs all
    of them) or availability (one after the other). With more than one of `tpu.slices` only.
    """

    @property
    def minutes_in_zone(self) -> float | None:
        """Return how long a request waits in a zone; None where there is only one."""
        return (self.zone_minutes or _ZONE_MINUTES) if self.fallback_zones else None


class TimeoutSettings(Timeouts):
    """How many minutes an operation on the TPU may take."""

    create_minutes: Minutes = None
    """Creation (1 to 1440; default: 20). A TPU that queues has `tpu.queued.waitMinutes` instead."""
    update_minutes: Minutes = None
    """Changes in place, such as another runtime (1 to 1440; default: 20)."""
    delete_minutes: Minutes = None
    """Deletion (1 to 1440; default: 20, or 30 for a TPU that queues)."""


class TpuSettings(Section):
    """The TPU: its size, its software and how it is bought."""

    accelerator_type: Text = "v2-8"
    """Type and size of the TPU, for example v5litepod-4 or v5p-32."""
    slices: int = Field(default=1, ge=1, le=256)
    """How many TPUs of that type (1 to 256). Several are called NAME-0, NAME-1 and so on. With
    architecture vm only.
    """
    runtime_version: Text | None = None
    """Software of a TPU VM, for example tpu-vm-tf-2.16.1-pod-se. With architecture
    vm only, and required there.
    """
    tensorflow_version: Text | None = None
    """TensorFlow of a classic TPU node, for example 2.12.1. With architecture node only, and
    required there.
    """
    cidr_block: Text | None = None
    """Private addresses of a classic TPU node, for example 10.240.1.0/29. With architecture node
    only; Google picks a range if it is not set.
    """
    capacity: Capacity = Capacity.ON_DEMAND
    """on-demand, spot (cheaper, can be taken away), preemptible (like spot, for at most 24 hours),
    reserved, or flex-start (waits for capacity, then stays for `tpu.queued.runHours`; v5e and v6e).
    """
    queued: QueueSettings | None = None
    """A group of settings, which may be empty: {}. Queue for the TPU instead of failing when there
    is no capacity. A spot TPU queues by itself, as Google recommends. With architecture vm only.
    """
    data_disks: tuple[DataDisk, ...] = ()
    """Disks of a TPU VM beside its boot disk. With architecture vm only."""
    boot_disk_gib: int | None = Field(default=None, ge=100, le=65536)
    """Size of a TPU VM's boot disk in GiB (100 to 65536; 100 if it is not set). With `tpu.queued`
    only.
    """
    external_ips: bool = False
    """Give every host of a TPU VM a public address. Not needed for the training. With architecture
    vm only.
    """
    tags: tuple[Text, ...] = ()
    """Network tags of a TPU VM, for firewall rules of an existing network. With architecture vm
    only.
    """
    scopes: tuple[Text, ...] = (FULL_SCOPE,)
    """Access scopes of a TPU VM's service account. IAM decides what it may do; a trainer on the TPU
    VM needs the full scope. With architecture vm only.
    """
    secure_boot: bool = False
    """Let a TPU VM boot only signed software (Shielded VM). With architecture vm only."""
    autocheckpoint: bool = False
    """Tell the trainer to save a checkpoint before maintenance, if its framework can. With
    `tpu.queued` only.
    """
    timeouts: TimeoutSettings = TimeoutSettings()
    """How long operations on the TPU may take."""

    @property
    def queue(self) -> QueueSettings | None:
        """Return how the TPU queues; None if it is created without the queue.

        Google calls the queue a best practice for spot TPUs ("Manage TPU Spot VMs",
        docs.cloud.google.com/tpu/docs/spot, 2025-08-28).
        """
        if self.queued is None:
            queues = self.capacity in (Capacity.SPOT, Capacity.FLEX_START)
            return QueueSettings() if queues else None
        return self.queued if self.queued.enabled else None
