"""The role that lets the machines enforce the limits of their TPU."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

_PERMISSIONS = ("tpu.nodes.delete", "tpu.nodes.start", "tpu.nodes.stop")
_IN_THE_QUEUE = ("tpu.queuedResources.delete",)


@dataclass(frozen=True)
class LimitsArgs:
    """The role to declare.

    Attributes:
        role_id: its id in the project.
        queued: whether the TPU comes from the queue.
        requires: the APIs that the role waits for.
    """

    project: str
    role_id: str
    queued: bool
    account: pulumi.Input[str]
    requires: tuple[pulumi.Resource, ...]


class Limits(pulumi.ComponentResource):
    """A role of the stack's own, with which its machines stop, start and delete their TPU.

    It is not `roles/tpu.admin`, on purpose, which could also create TPUs.
    """

    def __init__(
        self, name: str, args: LimitsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Limits", name, None, opts)
        own = pulumi.ResourceOptions(parent=self, depends_on=list(args.requires))
        role = gcp.projects.IAMCustomRole(
            "watchdog",
            project=args.project,
            role_id=args.role_id,
            title="Keeps the limits of a tpu-stack",
            permissions=[*_PERMISSIONS, *(_IN_THE_QUEUE if args.queued else ())],
            opts=own,
        )
        gcp.projects.IAMMember(
            "watchdog",
            project=args.project,
            role=role.name,
            member=pulumi.Output.concat("serviceAccount:", args.account),
            opts=own,
        )
        self.register_outputs({})
