"""The settings of a stack as one typed object. Nothing here knows the engine or the cloud."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from tpu_infra.settings import machines
from tpu_infra.settings.base import Section, StrEnum, Text


class LifecycleAction(StrEnum):
    """What happens to an object."""

    DELETE = "delete"
    NEARLINE = "nearline"
    COLDLINE = "coldline"
    ARCHIVE = "archive"


class LifecycleRule(Section):
    """A rule for old objects. All of its conditions must hold."""

    action: LifecycleAction = LifecycleAction.DELETE
    """Delete the objects, or move them to another storage class: nearline, coldline or archive.
    These cost less to store and more to read.
    """
    prefix: Text | None = None
    """Only objects whose names begin with this prefix, for example jobs/mnist-1/tensorboard/."""
    age_days: int | None = Field(default=None, ge=1, le=36500)
    """Only objects that were written at least this many days ago."""
    noncurrent_days: int | None = Field(default=None, ge=1, le=36500)
    """Only versions that were replaced or deleted at least this many days ago. Requires
    `bucket.versioning`.
    """
    newer_versions: int | None = Field(default=None, ge=1, le=1000)
    """Only versions with at least this many newer versions. Requires `bucket.versioning`."""


class EncryptionSettings(Section):
    """The key that encrypts the bucket's objects. Every setting is optional: `encryption: {}`."""

    key: Text | None = None
    """An existing key in the bucket's region: projects/P/locations/REGION/keyRings/R/cryptoKeys/K.
    Without it, the stack creates a key.
    """
    rotation_days: int | None = Field(default=None, ge=1, le=36500)
    """Days until the stack's own key gets a new version (90 by default). Objects that older
    versions encrypted stay readable.
    """


class BucketSettings(Section):
    """The bucket stores data, checkpoints and results. It outlives the VM and the TPU."""

    create: bool = True
    """Create the bucket. With false, the stack uses the existing bucket `bucket.name`: it uploads
    to it, grants access to it and never deletes it.
    """
    name: Text | None = None
    """Name of the bucket, unique in all of Google Cloud. By default, the project and the name
    prefix, or the name of data in `namePattern`.
    """
    location: Text | None = None
    """Region of the bucket. It must be the TPU's region, which is the default."""
    force_destroy: bool = False
    """Let `pulumi destroy` delete the bucket and everything in it. Otherwise it keeps both."""
    protect: bool = False
    """Refuse to delete or replace the bucket, until you run `pulumi state unprotect`."""
    versioning: bool = False
    """Keep older versions of overwritten and deleted objects."""
    soft_delete_days: int | None = Field(default=None, ge=0, le=90)
    """Days for which you can restore deleted objects: 7 to 90, or 0 to turn this off. Google's
    default is 7.
    """
    lifecycle: tuple[LifecycleRule, ...] = ()
    """Rules by which Google deletes old objects or moves them to a cheaper storage class."""
    encryption: EncryptionSettings | None = None
    """Encrypt with a Cloud KMS key that you control, instead of a key of Google's. A group of
    settings, which can be empty: {}.
    """

    @property
    def kept_days(self) -> int:
        """How long deleted objects are kept (docs.cloud.google.com/storage/docs/soft-delete)."""
        return 7 if self.soft_delete_days is None else self.soft_delete_days


# --- Budget

Percent = Annotated[int, Field(ge=1, le=1000)]


class BudgetScope(StrEnum):
    """Which costs count."""

    PROJECT = "project"
    STACK = "stack"


class BudgetSettings(Section):
    """A Cloud Billing budget. It sends alerts about spending, and stops nothing."""

    amount: int = Field(ge=1, le=1_000_000_000)
    """Monthly budget, in whole units of the billing account's currency."""
    scope: BudgetScope = BudgetScope.PROJECT
    """What the budget counts: everything in the project, or only resources with the stack's label.
    The latter leaves out the network and data that leaves the region.
    """
    thresholds: tuple[Percent, ...] = (50, 90, 100)
    """Percentages of the amount at which Google sends an alert (1 to 1000)."""
    emails: tuple[Text, ...] = ()
    """Email addresses to alert, at most 5. Google always alerts the billing account's
    administrators.
    """
    pubsub_topic: Text | None = None
    """Pub/Sub topic for alerts. Set a name to create a topic, or projects/PROJECT/topics/NAME to
    use an existing topic.
    """
    billing_account: Text | None = None
    """Billing account, for example 01ABCD-234567-89EF01. The project's own by default."""

    @property
    def own_topic(self) -> str | None:
        """The name of the topic to make; None for one that is there already, or none at all."""
        topic = self.pubsub_topic
        return None if topic is None or "/" in topic else topic


# --- Queue of jobs

_ACCOUNT = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?@[-a-z0-9.]+\.iam\.gserviceaccount\.com")


def _is_account(email: str) -> str:
    if not _ACCOUNT.fullmatch(email):
        raise ValueError(
            "is not a service account's address (NAME@PROJECT.iam.gserviceaccount.com)"
        )
    return email


Account = Annotated[Text, AfterValidator(_is_account)]
_MEMBER = re.compile(r"(user|group|serviceAccount):[^\s@]+@[^\s@]+|principal(Set)?://\S+")
_VERTEX_NETWORK = re.compile(r"projects/\d+/global/networks/[a-z][-a-z0-9]*")
_VERTEX_REGION = re.compile(r"[a-z]+-[a-z]+\d+")


class VertexSettings(Section):
    """Managed training: what Vertex AI needs for `tpustack job submit --on vertex`."""

    service_account: Account | None = None
    """Email address of an existing service account that runs the jobs. Without it, the stack
    creates one.
    """
    region: Text | None = None
    """Region of the custom jobs, for example us-central1. The stack's own by default."""
    network: Text | None = None
    """Network that is peered with Vertex AI: projects/NUMBER/global/networks/NAME. Without it, jobs
    reach only the internet.
    """
    submitters: tuple[Text, ...] = Field(default=())
    """Who can submit jobs, for example user:ada@example.com or group:ml@example.com. They get
    roles/aiplatform.user on the project, and can act as the service account that runs the jobs.
    """

    @field_validator("region")
    @classmethod
    def _region_is_one(cls, region: str | None) -> str | None:
        if region is not None and not _VERTEX_REGION.fullmatch(region):
            raise ValueError("is not a region (such as us-central1)")
        return region

    @field_validator("network")
    @classmethod
    def _network_has_a_number(cls, network: str | None) -> str | None:
        if network is not None and not _VERTEX_NETWORK.fullmatch(network):
            raise ValueError(
                "is not a network name for Vertex AI (projects/NUMBER/global/networks/NAME, with "
                "the project's number)"
            )
        return network

    @field_validator("submitters")
    @classmethod
    def _submitters_are_members(cls, submitters: tuple[str, ...]) -> tuple[str, ...]:
        for member in submitters:
            if not _MEMBER.fullmatch(member):
                raise ValueError(
                    f"has {member!r}, which is not a member such as user:ada@example.com"
                )
        return submitters


class JobsSettings(Section):
    """The job queue, to which `tpustack job submit` sends jobs."""

    enabled: bool = False
    """Run jobs from a queue in the bucket, one after the other, instead of one training. Anyone who
    can write to the bucket can then run programs on the machine.
    """
    as_root: bool = False
    """Run jobs as root and with the machine's service account. That account can write every object
    and, with recovery, create TPUs. Otherwise jobs have their own user and service account.
    """
    service_account: Account | None = None
    """Email address of an existing service account for jobs of the queue. Without it, the stack
    creates one. Requires `jobs.enabled`, and can't be used with `jobs.asRoot`.
    """
    vertex: VertexSettings | None = None
    """What Vertex AI needs to run jobs of this stack, which use its bucket. Without it, Vertex AI
    runs no jobs.
    """

    @property
    def apart(self) -> bool:
        """Whether jobs have an account of their own."""
        return self.enabled and not self.as_root


# --- Settings that take an unused TPU down


class LimitsSettings(Section):
    """Time limits, after which an idle or old TPU is stopped or deleted."""

    time_to_live_hours: float | None = Field(default=None, ge=0.5, le=8760)
    """Hours until the TPU is deleted. TPUs that recovery creates in its place count as the same
    one. A TPU that you recreate starts again at 0. At the limit, the VM that ran the training is
    stopped as well, unless `vm.instanceGroup` is set. `pulumi up --refresh` brings both back. With
    `architecture: compute`, Google deletes the machine: at most 2880. No limit by default.
    """
    idle_minutes: float | None = Field(default=None, ge=10, le=10080)
    """Minutes for which a TPU can be READY while nothing trains. Then it is stopped. If Google
    can't stop it, it is deleted: a TPU with several hosts, or from a queued resource. No limit by
    default.
    """
    role: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.]{3,64}$")
    """ID of a custom role that lets the machines stop and delete their TPU. `tpustack bootstrap`
    creates one: tpu_stack_limits. Without this setting, the stack creates its own role, for which
    its deployer must have permission to change roles.
    """

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.time_to_live_hours is not None or self.idle_minutes is not None


# --- Messages that the machine sends


class MessagesSettings(Section):
    """Notifications by Cloud Monitoring: how jobs end, and what happens to the TPU."""

    emails: tuple[Text, ...] = ()
    """Email addresses to which Cloud Monitoring sends each notification."""
    pubsub_topic: Text | None = None
    """Name of a Pub/Sub topic to create, for example tpu-messages. Cloud Monitoring publishes each
    notification to it.
    """
    channels: tuple[Text, ...] = ()
    """Existing notification channels of any kind, such as Slack or a webhook:
    projects/PROJECT/notificationChannels/NUMBER.
    """

    @property
    def any(self) -> bool:
        """Whether there is anyone to tell."""
        return bool(self.emails or self.channels) or self.pubsub_topic is not None


# --- Network


class NetworkSettings(Section):
    """The network of the VM and the TPU: the stack creates one, or uses an existing one."""

    create: bool = True
    """Create a network with a subnet, Private Google Access and Cloud NAT. With false, the stack
    uses `network.name`.
    """
    project: Text | None = None
    """Host project of the existing network, if it is a Shared VPC network. Requires
    `network.create: false` and `architecture: vm`.
    """
    name: Text | None = None
    """Name of the existing network (`default` by default). Requires `network.create: false`."""
    subnetwork: Text | None = None
    """Name of its subnet in the TPU's region (the network's name by default). Requires
    `network.create: false`.
    """
    tags: tuple[Text, ...] = ()
    """Network tags of the VM and of all hosts of the TPU, besides the stack's own, for firewall
    rules of an existing network.
    """
    subnet_range: Text | None = None
    """Address range of the subnet, for example 10.10.0.0/20. A network that the stack creates gets
    this range. In an existing network, a TPU Node must not overlap it.
    """

    @property
    def given_name(self) -> str:
        """Return the name of the network that is there already."""
        return self.name or "default"

    @property
    def given_subnetwork(self) -> str:
        """Return the name of its subnetwork."""
        return self.subnetwork or self.given_name


# --- Recovery of a lost TPU


class RecoverySettings(Section):
    """Recovery: whether the agent recreates a preempted or broken TPU, and how often."""

    enabled: bool = False
    """Let the agent on the VM recreate a TPU that was preempted or no longer works. It can't be
    used with a TPU VM and `training.runOn: tpu`, or with a TPU that Google deletes at a set time.
    With `architecture: compute` it is for `tpu.capacity: spot`, and creates a VM for the agent.
    """
    preemptions_per_day: int = Field(default=48, ge=1, le=1000)
    """How many preempted TPUs the agent recreates in a day."""
    failures_per_day: int = Field(default=10, ge=1, le=1000)
    """How many broken TPUs the agent recreates in a day."""
    service_account: Account | None = None
    """Email address of an existing service account for the VM that recreates a TPU with
    `architecture: compute`. Without it, the stack creates one.
    """


# --- The settings of a stack as one typed object. Nothing here knows the engine or the cloud

_OWNER = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_AI = re.compile(r"-ai\d+")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
OWN_LABELS = ("managed-by", "tpu-stack", "tpu-stack-mark")
"""What the stack itself says; settings have other labels."""
# Google allows 64 labels on anything; the provider has one of its own, too.
_MOST_LABELS = 64 - len(OWN_LABELS) - 1


class StackSettings(Section, strict=False):
    """Everything that one stack file says."""

    project: Text
    """Google Cloud project in which everything is created."""
    zone: Text
    """Zone of the TPU and the VM, for example us-central1-a. With an AI zone, the VM is in the
    parent zone.
    """
    name_prefix: Text | None = None
    """Prefix of all resource names. By default tpu-stack-STACK, or tpu-stack-STACK-OWNER if `owner`
    is set.
    """
    name_pattern: Text | None = None
    """Pattern of all resource names, for example acme-{stack}-{name}: words joined by hyphens, with
    {name} (tpu, vm, data and so on), {stack} and, if `owner` is set, {owner}. If you change it,
    everything is recreated. It can't be used with `namePrefix`.
    """
    owner: Text | None = None
    """The person that the stack belongs to, for example ada. All resource names contain it, so that
    two engineers can use one stack name in one project. If you change or remove it, everything is
    recreated. It can't be used with `namePrefix`.
    """
    architecture: machines.Architecture = machines.Architecture.VM
    """vm creates a TPU VM of the Cloud TPU API. compute creates a VM of Compute Engine with a TPU
    (v5p, v6e or TPU7x). node creates a TPU Node, the legacy architecture, which Google offers only
    to projects on its list.
    """
    tpu: machines.TpuSettings = machines.TpuSettings()
    """The TPU."""
    vm: machines.VmSettings = machines.VmSettings()
    """The VM."""
    bucket: BucketSettings = BucketSettings()
    """The bucket."""
    network: NetworkSettings = NetworkSettings()
    """The network."""
    training: machines.TrainingSettings = machines.TrainingSettings()
    """The training."""
    jobs: JobsSettings = JobsSettings()
    """The job queue."""
    messages: MessagesSettings = MessagesSettings()
    """Notifications."""
    limits: LimitsSettings = LimitsSettings()
    """Time limits of the TPU."""
    recovery: RecoverySettings = RecoverySettings()
    """Recovery of a preempted TPU."""
    budget: BudgetSettings | None = None
    """A budget with alerts. Without it, the stack has no budget."""
    service_account: Account | None = None
    """Email address of an existing service account for the VM and the TPU. The deployer must be
    able to act as it (`roles/iam.serviceAccountUser`). Without it, the stack creates one.
    """
    grant_roles: bool = True
    """Grant the service accounts their roles. With false, an administrator must grant them: a
    preview lists the commands.
    """
    enable_apis: bool = True
    """Enable the Google APIs that the stack needs. With false, an administrator must enable them.
    """
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels for every resource that supports labels."""

    @property
    def is_node(self) -> bool:
        """Whether the TPU is a classic node, and not a TPU VM."""
        return self.architecture is machines.Architecture.NODE

    @property
    def is_compute(self) -> bool:
        """Whether the TPU is a machine of Compute Engine, on which all training runs."""
        return self.architecture is machines.Architecture.COMPUTE

    @property
    def has_vm(self) -> bool:
        """Whether there is a VM next to the TPU; on Compute Engine only for recovery."""
        return self.vm.create and (not self.is_compute or self.recovery.enabled)

    @property
    def has_watcher(self) -> bool:
        """Whether the VM does nothing but recreate a TPU on Compute Engine."""
        return self.is_compute and self.has_vm

    @property
    def keeps_limits(self) -> bool:
        """Whether a machine of the stack takes TPUs down, or recreates them.

        Compute Engine ends its own machines.
        """
        return self.recovery.enabled or (self.limits.any and not self.is_compute)

    @property
    def trains_on_tpu(self) -> bool:
        """Whether worker 0 of the TPU VM runs the trainer, and not the VM."""
        return self.training.run_on is machines.RunOn.TPU

    @property
    def vm_comes_back(self) -> bool:
        """Return whether an update that refreshes starts a VM that is off.

        A group always does. A VM alone is off since a limit turned it off or, if it is
        preemptible, since Google took it away.
        """
        off = (
            self.limits.time_to_live_hours is not None
            or self.vm.capacity is not machines.VmCapacity.ON_DEMAND
        )
        acts = self.is_compute or not self.trains_on_tpu
        return off and acts and self.vm.instance_group is None

    @property
    def tpu_zones(self) -> tuple[str, ...]:
        """Return the zones that the TPU may be in, in the order in which they are tried."""
        queue = self.tpu.queue
        return (self.zone, *(queue.fallback_zones if queue else ()))

    def setting_of(self, zone: str) -> str:
        """Return the setting that names one of the zones that the TPU may be in."""
        return "zone" if zone == self.zone else "tpu.queued.fallbackZones"

    @property
    def vm_zone(self) -> str:
        """Zone of the VM: the TPU's, or the parent of an AI zone, which has no usual machines.

        The parent of `us-central1-ai1a` is `us-central1-a`
        (docs.cloud.google.com/compute/docs/regions-zones/ai-zones, read 2026-11-24). Without
        one, the TPU's own machine on Compute Engine is the VM.
        """
        return _AI.sub("-", self.zone) if self.has_vm or not self.is_compute else self.zone

    @property
    def region(self) -> str:
        """Region of the zone (`us-central1` of `us-central1-b`)."""
        return self.zone.rpartition("-")[0]

    @field_validator("owner")
    @classmethod
    def _owner_fits_into_names(cls, owner: str | None) -> str | None:
        if owner is not None and not _OWNER.fullmatch(owner):
            raise ValueError(
                "can't be part of a name (lower-case letters, digits and hyphens, no hyphen "
                "first or last)"
            )
        return owner

    @field_validator("labels")
    @classmethod
    def _labels_are_googles(cls, labels: dict[str, str]) -> dict[str, str]:
        own = ", ".join(repr(key) for key in labels if key in OWN_LABELS)
        wrong = ", ".join(
            f"{key!r}: {value!r}"
            for key, value in labels.items()
            if not (_LABEL.fullmatch(key) and key[:1].isalpha() and _LABEL.fullmatch(value))
        )
        why = []
        if len(labels) > _MOST_LABELS:
            why.append(f"has {len(labels)} labels, but Google allows {_MOST_LABELS} of yours")
        if own:
            why.append(f"has {own}, which the stack uses to find its own resources")
        if wrong:
            why.append(
                f"has {wrong}, but Google allows lower-case letters, digits, - and _, at most 63 "
                "of them, and keys begin with a letter"
            )
        if why:
            raise ValueError("; it ".join(why))
        return labels
