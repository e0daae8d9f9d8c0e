"""Settings of the machines: TPU, VM, disks, and the training that they run."""

from typing import Annotated

from pydantic import AwareDatetime, Field

from infra.settings.base import Section, StrEnum, Text

Minutes = Annotated[float | None, Field(ge=1, le=24 * 60)]


# --- Data disks of TPU VMs


class TpuDiskType(StrEnum):
    """Kinds of disk that TPU VMs take; which of them depends on the TPU."""

    PD_BALANCED = "pd-balanced"
    HYPERDISK_BALANCED = "hyperdisk-balanced"
    HYPERDISK_ML = "hyperdisk-ml"


class DiskMode(StrEnum):
    """How a disk is attached."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"


class DataDisk(Section):
    """A disk of the stack's own (`name`), or one that is there already (`source`)."""

    name: Text | None = None
    """Name of a disk to make; its full name begins with the TPU's name."""
    size_gib: int | None = Field(default=None, ge=10, le=65536)
    """Size of a disk to make, in GiB (10 to 65536). It can grow later, but not shrink. Required
    unless `snapshot` gives the size.
    """
    type: TpuDiskType | None = None
    """Type of a disk to make. The TPU's default if it is not set (pd-balanced up to v5p,
    hyperdisk-balanced for v6e).
    """
    snapshot: Text | None = None
    """Snapshot to make the disk from, for example projects/PROJECT/global/snapshots/NAME."""
    source: Text | None = None
    """An existing disk in the TPU's zone: projects/PROJECT/zones/ZONE/disks/NAME."""
    mode: DiskMode = DiskMode.READ_WRITE
    """read-write (for a TPU with one host), or read-only (for any number of hosts and slices)."""


# --- TPU


class BootDiskType(StrEnum):
    """Kinds of disk that machines of Compute Engine boot from; which of them depends on the TPU."""

    PD_BALANCED = "pd-balanced"
    PD_SSD = "pd-ssd"
    HYPERDISK_BALANCED = "hyperdisk-balanced"


_ZONE_MINUTES = 15.0
FULL_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class Architecture(StrEnum):
    """How Google serves the TPU."""

    VM = "vm"
    NODE = "node"
    COMPUTE = "compute"


class Capacity(StrEnum):
    """How a machine is paid for, and whether Google may take it away."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    PREEMPTIBLE = "preemptible"
    RESERVED = "reserved"
    FLEX_START = "flex-start"


class QueueSettings(Section):
    """How long to queue for the TPU. All of it may be left out: `queued: {}`."""

    enabled: bool = True
    """Whether the TPU comes from the queue; false creates a spot TPU VM without it."""

    wait_minutes: float = Field(default=60.0, ge=1, le=7 * 24 * 60)
    """How many minutes `pulumi up` waits for the TPU (1 to 10080). Then it fails; the request keeps
    its place, and the next `pulumi up` keeps waiting.
    """
    fallback_zones: tuple[Text, ...] = ()
    """Further zones of the same region to queue in, one after the other, when `zone` has no
    capacity: both by `pulumi up` and, with `recovery.enabled`, by the VM. VM and bucket stay.
    """
    zone_minutes: float | None = Field(default=None, ge=0.1, le=7 * 24 * 60)
    """How many minutes a request waits in a zone before it moves to the next one (0.1 to 10080;
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

    @property
    def minutes_in_zone(self) -> float | None:
        """Return how long a request waits in a zone; None where there is only one."""
        return (self.zone_minutes or _ZONE_MINUTES) if self.fallback_zones else None


class TimeoutSettings(Section):
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
    """Type and size of the TPU, for example v5litepod-4 or v5p-32. With architecture compute, the
    machine type: ct6e-standard-4t, for example.
    """
    topology: Text | None = None
    """How the chips of a machine of Compute Engine are connected, for example 2x2. It follows from
    the machine type, so that it may be left out. With architecture compute only.
    """
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
    is no capacity. A spot TPU always queues, as Google recommends. With architecture vm, and of
    compute `runHours` and `reservation` alone, which need no queue there.
    """
    data_disks: tuple[DataDisk, ...] = ()
    """Disks of a TPU VM besides its boot disk. With architecture vm only."""
    boot_disk_gib: int | None = Field(default=None, ge=100, le=65536)
    """Size of the boot disk in GiB (100 to 65536; 100 if it is not set, or 200 for a machine of
    Compute Engine). With `tpu.queued` or architecture compute only.
    """
    boot_disk_type: BootDiskType | None = None
    """Type of the boot disk of a machine of Compute Engine. The best that the machine type takes if
    it is not set. With architecture compute only.
    """
    external_ips: bool = False
    """Give every host of a TPU a public address. Not needed for the training. Not with architecture
    node.
    """
    tags: tuple[Text, ...] = ()
    """Network tags of the TPU's hosts, for firewall rules of an existing network. Not with
    architecture node.
    """
    scopes: tuple[Text, ...] = (FULL_SCOPE,)
    """Access scopes of the TPU's service account. IAM decides what it may do; a trainer on the TPU
    needs the full scope. Not with architecture node.
    """
    secure_boot: bool = False
    """Let the TPU's hosts boot only signed software (Shielded VM). Not with architecture node."""
    autocheckpoint: bool = False
    """Tell the trainer to save a checkpoint before maintenance, if its framework can. With
    `tpu.queued` only.
    """
    timeouts: TimeoutSettings = TimeoutSettings()
    """How long operations on the TPU may take."""

    @property
    def compute_disk_gib(self) -> int:
        """Size of the boot disk of a machine of Compute Engine; Google's default is 10."""
        return self.boot_disk_gib or 200

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


# --- VM that runs the training


class VmCapacity(StrEnum):
    """How the VM is paid for, and whether Google may take it away."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    PREEMPTIBLE = "preemptible"


class TerminationAction(StrEnum):
    """What Google does with a spot VM that it takes away."""

    STOP = "stop"
    DELETE = "delete"


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
    continues without it.
    """


# --- Training that the stack runs


class RunOn(StrEnum):
    """The machine that runs the trainer."""

    VM = "vm"
    TPU = "tpu"


class TrainingSettings(Section):
    """The training: what runs, where, on which data."""

    run_on: RunOn = RunOn.VM
    """vm: the VM drives the TPU by gRPC. tpu: worker 0 of the TPU VM runs the trainer itself, or,
    with architecture compute, the TPU's machine, the only one (not with architecture node).
    """
    job: Text = "train"
    """Name of this run; its results are under jobs/NAME in the bucket, or jobs/NAME-DIGEST with
    `training.data` or `training.args`, so that other data and other arguments each start a new job.
    A finished job is not run again: give the next one a new name.
    """
    wheel: Text | None = None
    """Wheel of the training package, relative to the project's root. The newest
    dist/tpu_stack_training-*.whl if it is not set.
    """
    data: Text | None = None
    """Directory, relative to the project's root, that `tpu-training data convert` wrote; its files
    become objects under data/ in the bucket.
    """
    args: tuple[Text, ...] = ()
    """Further arguments of `tpu-training train-and-evaluate`."""
    tensorflow_version: Text | None = None
    """TensorFlow on the machine that runs the trainer; it must agree with the TPU's. The TPU's own
    version if it is not set.
    """
    model_memory_gib: float = Field(default=2.0, ge=0.1, le=12288)
    """Memory in GiB that the model needs on the VM, where it is initialised (0.1 to 12288)."""
