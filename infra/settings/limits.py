"""Settings that take an unused TPU down."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section


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
