"""The names of the stack's resources: readable, and the same on every update."""

from __future__ import annotations

from dataclasses import dataclass

from infra.settings import StackSettings


@dataclass(frozen=True)
class Names:
    """The name of every resource that Google lists under a name."""

    prefix: str
    bucket: str

    @property
    def tpu(self) -> str:
        """The TPU; a queued resource has the same name as its node."""
        return f"{self.prefix}-tpu"

    def tpus(self, slices: int) -> tuple[str, ...]:
        """Return the slices' names, as Google forms them; one slice has no number."""
        return (
            tuple(f"{self.tpu}-{index}" for index in range(slices)) if slices > 1 else (self.tpu,)
        )

    @property
    def vm(self) -> str:
        """The VM."""
        return f"{self.prefix}-vm"

    @property
    def account(self) -> str:
        """Account id of the service account."""
        return f"{self.prefix}-sa"

    @property
    def limits_role(self) -> str:
        """Id of the role that limits need; such ids have no hyphens."""
        return f"{self.prefix.replace('-', '_')}_limits"

    @property
    def network(self) -> str:
        """The stack's own network, its subnet, its router and its NAT."""
        return f"{self.prefix}-net"


def names_of(settings: StackSettings, stack: str) -> Names:
    """Return the names in a stack."""
    prefix = settings.name_prefix or f"tpu-stack-{stack}"
    # A project of a domain is called example.com:project; bucket names have no colon, and one with
    # a dot would have to be a domain that the user owns.
    project = settings.project.replace(":", "-").replace(".", "-")
    return Names(prefix, settings.bucket.name or f"{project}-{prefix}")
