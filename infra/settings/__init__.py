"""The settings of a stack as one typed object. Nothing here knows the engine or the cloud."""

import re
from typing import Annotated

from pydantic import Field, field_validator

from infra.settings import machines
from infra.settings.base import Section, StrEnum, Text


class LifecycleAction(StrEnum):
    """What happens to an object."""

    DELETE = "delete"
    NEARLINE = "nearline"
    COLDLINE = "coldline"
    ARCHIVE = "archive"


class LifecycleRule(Section):
    """A rule for old objects. All of its conditions must hold."""

    action: LifecycleAction = LifecycleAction.DELETE
    """delete, or the storage class to move to: nearline, coldline or archive (cheaper to keep,
    dearer to read).
    """
    prefix: Text | None = None
    """Only objects whose names have this prefix, for example jobs/mnist-1/tensorboard/."""
    age_days: int | None = Field(default=None, ge=1, le=36500)
    """Days since the object was written (1 to 36500)."""
    noncurrent_days: int | None = Field(default=None, ge=1, le=36500)
    """Only versions that were replaced or deleted this many days ago (1 to 36500). With
    `bucket.versioning` only.
    """
    newer_versions: int | None = Field(default=None, ge=1, le=1000)
    """Only versions with at least this many newer ones (1 to 1000). With `bucket.versioning` only.
    """


class EncryptionSettings(Section):
    """The key of the bucket's objects. All of it may be left out: `encryption: {}`."""

    key: Text | None = None
    """An existing key in the bucket's region: projects/P/locations/REGION/keyRings/R/cryptoKeys/K.
    The stack makes one if it is not set.
    """
    rotation_days: int | None = Field(default=None, ge=1, le=36500)
    """Days between two versions of the stack's own key (1 to 36500; 90 if it is not set). Objects
    encrypted with older versions stay readable.
    """


class BucketSettings(Section):
    """The bucket: data, checkpoints and results; it outlives the machines."""

    create: bool = True
    """Make the bucket. false: use the existing bucket `bucket.name`, which stays; the stack uploads
    to it and grants access to it.
    """
    name: Text | None = None
    """Name, unique in all of Google Cloud. PROJECT-PREFIX if it is not set."""
    location: Text | None = None
    """Region; must be the TPU's, which is also the default."""
    force_destroy: bool = False
    """Delete the bucket with everything in it on `pulumi destroy`. Otherwise the bucket and its
    objects are left standing.
    """
    protect: bool = False
    """Refuse to delete or replace the bucket (`pulumi state unprotect`)."""
    versioning: bool = False
    """Keep the old generations of overwritten and deleted objects."""
    soft_delete_days: int | None = Field(default=None, ge=0, le=90)
    """Days for which deleted objects can be restored: 7 to 90, or 0 for not at all. Google's
    default, 7, if it is not set.
    """
    lifecycle: tuple[LifecycleRule, ...] = ()
    """Rules by which Google deletes objects or moves them to a cheaper storage class."""
    encryption: EncryptionSettings | None = None
    """A group of settings, which may be empty: {}. Encrypt with a key of Cloud KMS that you control
    instead of one of Google's.
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
    """A budget in Google's billing: it tells what was spent, and stops nothing."""

    amount: int = Field(ge=1, le=1_000_000_000)
    """Monthly budget in whole units of the billing account's currency (1 to 1000000000)."""
    scope: BudgetScope = BudgetScope.PROJECT
    """project (everything in the project), or stack (only resources with the stack's label: neither
    the network nor data that leaves the region).
    """
    thresholds: tuple[Percent, ...] = (50, 90, 100)
    """Percentages of the amount at which Google reports the spending (1 to 1000)."""
    emails: tuple[Text, ...] = ()
    """Addresses to notify, at most 5. The billing account's administrators are always notified."""
    pubsub_topic: Text | None = None
    """Pub/Sub topic to notify: the name of one to make, or projects/PROJECT/topics/NAME of an
    existing one.
    """
    billing_account: Text | None = None
    """Billing account, for example 01ABCD-234567-89EF01. The project's own if it is not set."""

    @property
    def own_topic(self) -> str | None:
        """The name of the topic to make; None for one that is there already, or none at all."""
        topic = self.pubsub_topic
        return None if topic is None or "/" in topic else topic


# --- Queue of jobs

_MEMBER = re.compile(r"(user|group|serviceAccount):[^\s@]+@[^\s@]+|principal(Set)?://\S+")
_VERTEX_NETWORK = re.compile(r"projects/\d+/global/networks/[a-z][-a-z0-9]*")
_VERTEX_REGION = re.compile(r"[a-z]+-[a-z]+\d+")


class VertexSettings(Section):
    """Managed training: what Vertex AI needs to run `tpustack job submit --on vertex`."""

    region: Text | None = None
    """Region of the custom jobs, for example us-central1. The stack's own if it is not set."""
    network: Text | None = None
    """Network that is peered with Vertex AI, projects/NUMBER/global/networks/NAME. None if it is
    not set: jobs reach the internet alone.
    """
    submitters: tuple[Text, ...] = Field(default=())
    """Who may submit: members such as user:ada@example.com or group:ml@example.com. They get
    roles/aiplatform.user on the project and may act as the account that runs the jobs.
    """

    @field_validator("region")
    @classmethod
    def _region_is_one(cls, region: str | None) -> str | None:
        if region is not None and not _VERTEX_REGION.fullmatch(region):
            raise ValueError("is no region (one is like us-central1)")
        return region

    @field_validator("network")
    @classmethod
    def _network_has_a_number(cls, network: str | None) -> str | None:
        if network is not None and not _VERTEX_NETWORK.fullmatch(network):
            raise ValueError(
                "is no network as Vertex AI takes it (projects/NUMBER/global/networks/NAME, with "
                "the project's number)"
            )
        return network

    @field_validator("submitters")
    @classmethod
    def _submitters_are_members(cls, submitters: tuple[str, ...]) -> tuple[str, ...]:
        for member in submitters:
            if not _MEMBER.fullmatch(member):
                raise ValueError(f"has {member!r}, which is no member like user:ada@example.com")
        return submitters


class JobsSettings(Section):
    """Jobs: whether the stack runs what `tpustack job submit` sends."""

    enabled: bool = False
    """Whether the machine that would run the training runs the jobs of a queue in the bucket
    instead, one after the other. Anyone who may write to the bucket can then run programs on it.
    """
    as_root: bool = False
    """Whether jobs run as root and as the machines' own account, which makes TPUs with recovery and
    writes every object. Otherwise they have a user and an account of their own.
    """
    vertex: VertexSettings | None = None
    """What Vertex AI needs to run jobs of this stack, whose bucket they use. None if it is not set:
    it runs none.
    """

    @property
    def apart(self) -> bool:
        """Whether jobs have an account of their own."""
        return self.enabled and not self.as_root


# --- Settings that take an unused TPU down


class LimitsSettings(Section):
    """The limits: when a TPU that is unused or too old is taken down."""

    time_to_live_hours: float | None = Field(default=None, ge=0.5, le=8760)
    """How many hours a TPU lives (0.5 to 8760), together with those that recovery makes in its
    place. One that a person makes counts from its own creation. Then it is deleted and the VM that
    ran the training is turned off (unless `vm.instanceGroup` is set); `pulumi up --refresh` brings
    both back. No limit if it is not set.
    """
    idle_minutes: float | None = Field(default=None, ge=10, le=10080)
    """How many minutes a TPU may be READY while nothing trains (10 to 10080). Then it is stopped,
    or deleted if Google can't stop it (several hosts, or out of the queue). No limit if it is not
    set.
    """
    role: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.]{3,64}$")
    """Id of a role in the project that lets the machines stop and delete their TPU, for example
    tpu_stack_limits, which `tpustack bootstrap` makes. The stack makes one of its own if it is not
    set, for which its deployer must be allowed to change roles.
    """

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.time_to_live_hours is not None or self.idle_minutes is not None


# --- Messages that the machine sends


class MessagesSettings(Section):
    """Whom Cloud Monitoring tells how jobs and trainings end, and what has become of the TPU."""

    emails: tuple[Text, ...] = ()
    """Addresses to which Cloud Monitoring sends each message."""
    pubsub_topic: Text | None = None
    """Name of a Pub/Sub topic to make, to which Cloud Monitoring publishes each message, for
    example tpu-messages. None if it is not set.
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
    """The network of VM and TPU: one of the stack's own, or one that is there already."""

    create: bool = True
    """Make a network with a subnet, Private Google Access and Cloud NAT. false: use `network.name`.
    """
    project: Text | None = None
    """Project of the existing network, if it is another: the host project of a Shared VPC. Only
    with `network.create: false` and architecture vm.
    """
    name: Text | None = None
    """Name of the existing network (`default` if it is not set). Only with `network.create: false`.
    """
    subnetwork: Text | None = None
    """Name of its subnetwork in the TPU's region (the network's name if it is not set). Only with
    `network.create: false`.
    """
    subnet_range: Text | None = None
    """Address range of the subnetwork, for example 10.10.0.0/20. The stack's own network gets this
    range; in an existing network, a TPU node must not overlap it.
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
    """Recovery: whether the agent recreates a lost TPU, and how often."""

    enabled: bool = False
    """Whether the VM recreates a TPU that was preempted or no longer works. Not with
    `training.runOn: tpu`, nor for TPUs that Google deletes after a while.
    """
    preemptions_per_day: int = Field(default=48, ge=1, le=1000)
    """How many preempted TPUs a day are recreated (1 to 1000)."""
    failures_per_day: int = Field(default=10, ge=1, le=1000)
    """How many TPUs a day are recreated because they do not work (1 to 1000)."""


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
    """Google Cloud project that everything is created in."""
    zone: Text
    """Zone of the TPU and the VM, for example us-central1-a. An AI zone's VM is in its parent."""
    name_prefix: Text | None = None
    """Prefix of the names of all resources. tpu-stack-STACK, or tpu-stack-STACK-OWNER, if it is not
    set.
    """
    owner: Text | None = None
    """Person whom the stack belongs to, for example ada: part of all names, so that two engineers
    can have stacks of the same name in one project. With another one, or none, everything is
    recreated. Not with namePrefix.
    """
    architecture: machines.Architecture = machines.Architecture.VM
    """vm (TPU VM of the Cloud TPU API), compute (a machine of Compute Engine with a TPU: v5p, v6e
    or TPU7x), or node (the classic TPU node; Google denies it to projects that are not on its
    list).
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
    """Whether the stack runs the jobs of a queue in place of one training."""
    messages: MessagesSettings = MessagesSettings()
    """Whom the machine tells how jobs and trainings end."""
    limits: LimitsSettings = LimitsSettings()
    """When the TPU is taken down without a `pulumi destroy`."""
    recovery: RecoverySettings = RecoverySettings()
    """Whether the agent recreates a lost TPU."""
    budget: BudgetSettings | None = None
    """A budget with alerts. None if it is not set."""
    enable_apis: bool = True
    """Enable the Google APIs that the stack needs. false: an administrator enables them."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels for every resource that can have labels."""

    @property
    def is_node(self) -> bool:
        """Whether the TPU is a classic node, and not a TPU VM."""
        return self.architecture is machines.Architecture.NODE

    @property
    def is_compute(self) -> bool:
        """Whether the TPU is a machine of Compute Engine, which is the stack's only machine."""
        return self.architecture is machines.Architecture.COMPUTE

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
        return off and self.vm.instance_group is None and self.training.run_on is machines.RunOn.VM

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
        (docs.cloud.google.com/compute/docs/regions-zones/ai-zones, read 2026-11-24).
        """
        return _AI.sub("-", self.zone)

    @property
    def region(self) -> str:
        """Region of the zone (`us-central1` of `us-central1-b`)."""
        return self.zone.rpartition("-")[0]

    @field_validator("owner")
    @classmethod
    def _owner_fits_into_names(cls, owner: str | None) -> str | None:
        if owner is not None and not _OWNER.fullmatch(owner):
            raise ValueError(
                "is no part of a name (lower-case letters, digits and hyphens, no hyphen first or "
                "last)"
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
            why.append(f"has {own}, which is the stack's own: by it all that it makes is found")
        if wrong:
            why.append(
                f"has {wrong}, but Google allows lower-case letters, digits, - and _, at most 63 "
                "of them, and keys begin with a letter"
            )
        if why:
            raise ValueError("; it ".join(why))
        return labels
