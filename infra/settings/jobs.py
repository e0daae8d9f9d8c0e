"""Settings of the queue of jobs."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from infra.settings.base import Section, Text

_MEMBER = re.compile(r"(user|group|serviceAccount):[^\s@]+@[^\s@]+|principal(Set)?://\S+")
_NETWORK = re.compile(r"projects/\d+/global/networks/[a-z][-a-z0-9]*")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")


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
        if region is not None and not _REGION.fullmatch(region):
            raise ValueError("is no region (one is like us-central1)")
        return region

    @field_validator("network")
    @classmethod
    def _network_has_a_number(cls, network: str | None) -> str | None:
        if network is not None and not _NETWORK.fullmatch(network):
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
    instead, one after the other. Whoever may write to the bucket can then run programs on it.
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
