"""The role that lets the machines enforce the limits of their TPU."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

import pulumi
import pulumi_gcp as gcp

from infra.components import projects

# They count for requests in the queue, too.
_PERMISSIONS = ("tpu.nodes.delete", "tpu.nodes.start", "tpu.nodes.stop")


@dataclass(frozen=True)
class LimitsArgs:
    """The role to declare.

    Attributes:
        role_id: the beginning of its id in the project.
        given: the id of a role that is there already; None for one of the stack's own.
        creates: whether the machines make a lost TPU anew.
        as_itself: whether that TPU runs as an account of the stack's, as all but classic nodes do.
        account: the address of the machines' account.
        tpu_account_name: the full name of the TPU's account.
        requires: the APIs that the role waits for.
    """

    project: str
    role_id: str
    given: str | None
    creates: bool
    as_itself: bool
    account: pulumi.Input[str]
    tpu_account_name: pulumi.Input[str]
    requires: tuple[pulumi.Resource, ...]


class Limits(pulumi.ComponentResource):
    """A role of the stack's own, with which its machines stop, start and delete their TPU.

    It is not `roles/tpu.admin`, on purpose: they create TPUs only where recovery is enabled, and
    then as the stack's account for it alone.
    """

    def __init__(
        self, name: str, args: LimitsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Limits", name, None, opts)
        own = pulumi.ResourceOptions(parent=self, depends_on=list(args.requires))
        given = f"projects/{args.project}/roles/{args.given}"
        projects.IAMMember(
            "watchdog",
            project=args.project,
            role=given if args.given else self._role(args, own),
            member=pulumi.Output.concat("serviceAccount:", args.account),
            opts=own,
        )
        if args.creates and args.as_itself:
            gcp.serviceaccount.IAMMember(
                "itself",
                service_account_id=args.tpu_account_name,
                role="roles/iam.serviceAccountUser",
                member=pulumi.Output.concat("serviceAccount:", args.account),
                opts=own,
            )
        self.register_outputs({})

    def _role(self, args: LimitsArgs, own: pulumi.ResourceOptions) -> pulumi.Output[str]:
        return projects.IAMCustomRole(
            "watchdog",
            project=args.project,
            role_id=f"{args.role_id}_{week(datetime.now(timezone.utc))}",
            title="Keeps the limits of a tpu-stack",
            permissions=permissions_of_role(creates=args.creates),
            opts=pulumi.ResourceOptions.merge(
                own, pulumi.ResourceOptions(ignore_changes=["roleId"])
            ),
        ).name


def permissions_of_role(*, creates: bool) -> list[str]:
    """Return what the role holds, by whether the machines make their TPU anew."""
    return [*(["tpu.nodes.create"] if creates else []), *_PERMISSIONS]


def week(now: datetime) -> str:
    """Return the part of a role's id that another week changes.

    Google keeps the id of a deleted role for 37 days. It lets the provider bring the role back for
    the first 7, so within the same week; later the role needs another id. The role keeps the one
    that it was made with.
    """
    year, number, _ = now.isocalendar()
    return f"{year}w{number:02}"
