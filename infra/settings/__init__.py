"""The settings of a stack as one typed object. Nothing here knows the engine or the cloud."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from infra.settings.base import Section, Text
from infra.settings.bucket import BucketSettings
from infra.settings.budget import BudgetSettings
from infra.settings.jobs import JobsSettings
from infra.settings.limits import LimitsSettings
from infra.settings.messages import MessagesSettings
from infra.settings.network import NetworkSettings
from infra.settings.recovery import RecoverySettings
from infra.settings.tpu import Architecture, TpuSettings
from infra.settings.training import RunOn, TrainingSettings
from infra.settings.vm import VmCapacity, VmSettings

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
    can have stacks of the same name in one project. With another one, or none, everything is made
    anew. Not with namePrefix.
    """
    architecture: Architecture = Architecture.VM
    """vm (TPU VM, today's API), or node (the classic TPU node; Google denies it to projects that
    are not on its list).
    """
    tpu: TpuSettings = TpuSettings()
    """The TPU."""
    vm: VmSettings = VmSettings()
    """The VM."""
    bucket: BucketSettings = BucketSettings()
    """The bucket."""
    network: NetworkSettings = NetworkSettings()
    """The network."""
    training: TrainingSettings = TrainingSettings()
    """The training."""
    jobs: JobsSettings = JobsSettings()
    """Whether the stack runs the jobs of a queue in place of one training."""
    messages: MessagesSettings = MessagesSettings()
    """Whom the machine tells how jobs and trainings end."""
    limits: LimitsSettings = LimitsSettings()
    """When the TPU is taken down without a `pulumi destroy`."""
    recovery: RecoverySettings = RecoverySettings()
    """Whether a lost TPU is made anew without a person."""
    budget: BudgetSettings | None = None
    """A budget with alerts. None if it is not set."""
    enable_apis: bool = True
    """Enable the Google APIs that the stack needs. false: somebody else enables them."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels for every resource that can have labels."""

    @property
    def vm_comes_back(self) -> bool:
        """Return whether an update that refreshes starts a VM that is off.

        A group does so by itself. A VM alone is off since a limit turned it off or, if it is
        preemptible, since Google took it away.
        """
        off = (
            self.limits.time_to_live_hours is not None
            or self.vm.capacity is not VmCapacity.ON_DEMAND
        )
        return off and self.vm.instance_group is None and self.training.run_on is RunOn.VM

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
