"""Settings of the machines: TPU, VM, disks, and the training that they run."""

from typing import Annotated

from pydantic import AwareDatetime, Field

from tpu_infra.settings.base import Section, StrEnum, Text

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
    """A data disk that the stack creates (`name`), or an existing one (`source`)."""

    name: Text | None = None
    """Name of a disk to create. The TPU's name is put before it."""
    size_gib: int | None = Field(default=None, ge=10, le=65536)
    """Size of a disk to create, in GiB. You can increase it later, but not decrease it. Required
    unless `snapshot` gives the size.
    """
    type: TpuDiskType | None = None
    """Type of a disk to create. By default pd-balanced up to v5p, and hyperdisk-balanced for v6e.
    """
    snapshot: Text | None = None
    """Snapshot to create the disk from, for example projects/PROJECT/global/snapshots/NAME."""
    source: Text | None = None
    """An existing disk in the TPU's zone: projects/PROJECT/zones/ZONE/disks/NAME."""
    mode: DiskMode = DiskMode.READ_WRITE
    """read-write works for a TPU with one host. read-only works for any number of hosts and slices.
    """


# --- TPU


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
    """How a queued resource waits for the TPU. Every setting is optional: `queued: {}`."""

    enabled: bool = True
    """Request the TPU as a queued resource. With false, a spot TPU VM is created directly."""

    wait_minutes: float = Field(default=60.0, ge=1, le=7 * 24 * 60)
    """Minutes for which `pulumi up` waits for the TPU. Then it fails, but the queued resource keeps
    its place. The next `pulumi up` continues to wait.
    """
    fallback_zones: tuple[Text, ...] = ()
    """Other zones of the same region, which are tried in order when `zone` has no capacity. `pulumi
    up` tries them, and so does the agent with `recovery.enabled`. The VM and the bucket don't move.
    """
    zone_minutes: float | None = Field(default=None, ge=0.1, le=7 * 24 * 60)
    """Minutes for which a queued resource waits in a zone (15 by default). Then it is deleted,
    loses its place, and is created in the next zone. Requires `tpu.queued.fallbackZones`.
    """
    valid_until: AwareDatetime | None = None
    """When Google cancels the queued resource, for example 2026-12-31T18:00:00Z. Without it, the
    queued resource waits without a deadline.
    """
    reservation: Text | None = None
    """Name of the reservation that provides the TPU, or
    projects/PROJECT/locations/ZONE/reservations/NAME in another project. By default, any
    reservation of the project. Requires `tpu.capacity: reserved`.
    """
    reservation_bound: bool = False
    """The reservation was created in calendar mode. Google deletes the TPU when it ends. Requires
    `tpu.queued.reservation`.
    """
    # At most 7 days: docs.cloud.google.com/tpu/docs/request-using-flex-start, 2025-09-04.
    run_hours: float | None = Field(default=None, gt=0, le=168)
    """Hours after which Google deletes the TPU, at most 168 (7 days). Required with `tpu.capacity:
    flex-start`, and not allowed otherwise.
    """
    guaranteed_hours: float | None = Field(default=None, gt=0, le=365 * 24)
    """Wait for a TPU that is available for at least this many hours, at most 8760. Requires
    `tpu.capacity: on-demand` or `reserved`.
    """

    @property
    def minutes_in_zone(self) -> float | None:
        """Return how long a request waits in a zone; None where there is only one."""
        return (self.zone_minutes or _ZONE_MINUTES) if self.fallback_zones else None


class TimeoutSettings(Section):
    """Minutes that an operation on the TPU can take."""

    create_minutes: Minutes = None
    """Minutes to create the TPU (20 by default). With `tpu.queued`, `tpu.queued.waitMinutes`
    applies instead.
    """
    update_minutes: Minutes = None
    """Minutes to change the TPU in place, for example its runtime (20 by default)."""
    delete_minutes: Minutes = None
    """Minutes to delete the TPU (20 by default, 30 with `tpu.queued`)."""


class TpuSettings(Section):
    """The TPU: its size, its software and its provisioning model."""

    accelerator_type: Text = "v2-8"
    """Accelerator type: generation and size of the TPU, for example v5litepod-4 or v5p-32. With
    `architecture: compute`, the machine type, for example ct6e-standard-4t.
    """
    topology: Text | None = None
    """How the chips of Compute Engine machines are connected, for example 2x2. By default, that of
    one machine of the type. A larger one, for example 4x4, takes as many machines as it needs, and
    pulumi-gcp 9.20 or later. Requires `architecture: compute`.
    """
    slices: int = Field(default=1, ge=1, le=256)
    """Number of TPUs of that type. Several are named NAME-0, NAME-1 and so on. Requires
    `architecture: vm`.
    """
    runtime_version: Text | None = None
    """Software version of a TPU VM, for example tpu-vm-tf-2.16.1-pod-se. Required with
    `architecture: vm`, and not allowed with node.
    """
    tensorflow_version: Text | None = None
    """TensorFlow version of a TPU Node, for example 2.12.1. Required with `architecture: node`, and
    not allowed with vm.
    """
    cidr_block: Text | None = None
    """Address range of a TPU Node, for example 10.240.1.0/29. By default, Google chooses a range.
    Requires `architecture: node`.
    """
    capacity: Capacity = Capacity.ON_DEMAND
    """Provisioning model. Google can preempt spot and preemptible TPUs, which cost less;
    preemptible ones run for at most 24 hours. reserved uses a reservation. flex-start (v5e and v6e)
    waits for capacity, then runs for `tpu.queued.runHours`.
    """
    queued: QueueSettings | None = None
    """Request the TPU as a queued resource, which waits for capacity instead of failing. Spot TPUs
    use queued resources by default, as Google recommends. A group of settings, which can be empty:
    {}. Requires `architecture: vm`; compute allows `runHours` and `reservation`, without a queue.
    """
    data_disks: tuple[DataDisk, ...] = ()
    """Data disks of a TPU VM. Requires `architecture: vm`."""
    boot_disk_gib: int | None = Field(default=None, ge=100, le=65536)
    """Size of the boot disk in GiB (100 by default, 200 with `architecture: compute`). Requires
    `tpu.queued` or `architecture: compute`.
    """
    external_ips: bool = False
    """Give every host of the TPU an external IP address. Training doesn't need one. Not allowed
    with `architecture: node`.
    """
    tags: tuple[Text, ...] = ()
    """Network tags of the TPU's hosts, for firewall rules of an existing network. Not allowed with
    `architecture: node`.
    """
    scopes: tuple[Text, ...] = (FULL_SCOPE,)
    """Access scopes of the TPU's service account. IAM roles grant its permissions. A trainer on
    the TPU needs the full scope. Not allowed with `architecture: node`.
    """
    secure_boot: bool = False
    """Let the TPU's hosts boot only signed software (Shielded VM). Not allowed with
    `architecture: node`.
    """
    autocheckpoint: bool = False
    """Tell the trainer to save a checkpoint before maintenance, if its framework supports that.
    Requires `tpu.queued`.
    """
    timeouts: TimeoutSettings = TimeoutSettings()
    """Timeouts of operations on the TPU."""

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
    """Boot only signed software. Set false to load your own drivers."""
    vtpm: bool = True
    """Give the VM a virtual trusted platform module (vTPM)."""
    integrity_monitoring: bool = True
    """Compare every boot with the first one. Requires `vm.shielded.vtpm`."""


class InstanceGroupSettings(Section):
    """A managed instance group (MIG) of one VM. Every setting is optional: `instanceGroup: {}`."""

    initial_delay_seconds: int = Field(default=300, ge=0, le=3600)
    """Seconds until a new VM must answer its health check."""
    check_interval_seconds: int = Field(default=30, ge=5, le=300)
    """Seconds between two health checks."""
    failed_checks: int = Field(default=3, ge=1, le=10)
    """Number of checks in a row that must fail before the VM is recreated."""


class VmSettings(Section):
    """The VM drives the TPU by gRPC. It can be small if the model fits into its memory."""

    create: bool = True
    """Create the VM. With false, the stack's only machine is the TPU, whose worker 0 runs the
    trainer. Requires `training.runOn: tpu`.
    """
    machine_type: Text = "n1-standard-2"
    """Compute Engine machine type, for example n2-highmem-8."""
    capacity: VmCapacity = VmCapacity.ON_DEMAND
    """Provisioning model. Google can preempt spot and preemptible VMs, which cost less; preemptible
    ones run for at most 24 hours.
    """
    termination_action: TerminationAction | None = None
    """What Google does when it preempts a spot VM: stop it (the default), or delete it. Requires
    `vm.capacity: spot`.
    """
    instance_group: InstanceGroupSettings | None = None
    """Let a managed instance group (MIG) recreate the VM after a preemption, deletion or failure.
    Training then resumes. A group of settings, which can be empty: {}.
    """
    image: Text = "debian-cloud/debian-12"
    """Boot image as PROJECT/FAMILY. The startup script is written for Debian 12."""
    boot_disk_gib: int = Field(default=50, ge=20, le=65536)
    """Size of the boot disk in GiB."""
    boot_disk_type: DiskType = DiskType.BALANCED
    """Type of the boot disk."""
    keep_boot_disk: bool = False
    """Keep the boot disk when the VM is deleted or replaced. The next VM boots from it, with
    everything that was installed. `pulumi destroy` deletes it.
    """
    public_ip: bool = False
    """Give the VM an external IP address. Training doesn't need one."""
    os_login: bool = True
    """Use OS Login: IAM controls who can log in by SSH, instead of keys in the metadata."""
    serial_port_logging: bool = True
    """Send the serial port output to Cloud Logging, where `tpustack logs` reads it."""
    shielded: ShieldedSettings = ShieldedSettings()
    """Shielded VM."""
    ops_agent: bool = False
    """Install Google's Ops Agent for memory and disk metrics and for logs. If the installation
    fails, training continues without it.
    """


# --- Training that the stack runs


class RunOn(StrEnum):
    """The machine that runs the trainer."""

    VM = "vm"
    TPU = "tpu"


class Backend(StrEnum):
    """What runs the trainer's steps."""

    TENSORFLOW = "tensorflow"
    JAX = "jax"


class TrainingSettings(Section):
    """The training: what runs, where, and on which data."""

    run_on: RunOn = RunOn.VM
    """With vm, the VM runs the trainer and drives the TPU by gRPC. With tpu, worker 0 of the TPU VM
    runs the trainer. `architecture: compute` has tpu alone, node has vm alone.
    """
    backend: Backend | None = None
    """What runs the trainer's steps. With jax, each machine of the TPU runs the trainer; requires
    `architecture: compute`. There the default is tensorflow for a single machine with
    `training.tensorflowVersion`, if its type has TensorFlow, and otherwise jax.
    """
    job: Text = "train"
    """Name of this run. Its results are under jobs/NAME in the bucket. With `training.data` or
    `training.args` they are under jobs/NAME-DIGEST, so that other data or arguments start a new
    run. A finished run doesn't start again: give the next one a new name.
    """
    wheel: Text | None = None
    """Wheel of the training package, relative to the project's root. By default, the newest
    dist/tpu_stack_training-*.whl.
    """
    data: Text | None = None
    """Directory that `tpu-training data convert` wrote, relative to the project's root. Its files
    are uploaded to data/ in the bucket.
    """
    args: tuple[Text, ...] = ()
    """More arguments of `tpu-training train-and-evaluate`."""
    tensorflow_version: Text | None = None
    """TensorFlow version on the machine that runs the trainer. It must match the TPU's version,
    which is the default. With `training.backend: jax` the default is the one locked with JAX.
    """
    model_memory_gib: float = Field(default=2.0, ge=0.1, le=12288)
    """Memory in GiB that the model needs on the VM, which initializes it."""
