"""Whom the machines act as, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Literal

import pulumi
import pulumi_gcp as gcp

from tpu_infra import apis, deployer, grants, names
from tpu_infra.checks import CheckedStack
from tpu_infra.components.bucket import Bucket
from tpu_infra.components.services import ProjectServices
from tpu_infra.grants import Grant, On
from tpu_infra.settings import VertexSettings


class Identity(pulumi.ComponentResource):
    """One service account for the stack's machines, with the fewest roles that the job needs.

    It has no keys, on purpose: machines get tokens from the metadata server. Machines do not wait
    for the grants, which take a while to count anyway; their start-up scripts do.
    """

    email: pulumi.Output[str]
    made: tuple[pulumi.Resource, ...] = ()
    """The account, if the stack makes it: what needs it waits for this."""

    def __init__(
        self,
        stack: CheckedStack,
        services: ProjectServices,
        bucket: Bucket,
        kind: Literal["identity", "jobs", "watcher"] = "identity",
        machines: Identity | None = None,
    ) -> None:
        """Declare the account of the machines, of their jobs, or of a VM that only recreates.

        `machines` make the tokens of the jobs' account.
        """
        super().__init__("tpu-stack:infra:Identity", kind)
        own, settings = stack.names, stack.settings
        of_jobs = (settings.jobs.service_account, own.jobs_email, own.jobs_account)
        of_watcher = (settings.recovery.service_account, own.watcher_email, own.watcher_account)
        (given, email, account_id), found = {
            "identity": (
                (settings.service_account, own.email, own.account),
                grants.of_machines,
            ),
            "jobs": (of_jobs, grants.of_jobs),
            "watcher": (of_watcher, grants.of_watcher),
        }[kind]
        self.email = pulumi.Output.from_input(email)
        if given is None:
            account = gcp.serviceaccount.Account(
                # The URN of a resource has the type of its parent, not its name.
                "account" if kind == "identity" else f"{kind}-account",
                project=settings.project,
                account_id=account_id,
                display_name="Machines of a tpu-stack",
                description=stack.marked_description,
                # Google refuses an account that exists, which may be a colleague's; `tpustack
                # recover` adopts what a killed update has made.
                opts=services.after(
                    apis.IAM_API, parent=self, ignore_changes=names.KEPT_DESCRIPTION
                ),
            )
            self.email, self.made = account.email, (account,)
        needs = [*self.made, *(machines.made if machines else ())]
        grant(found(settings, own), stack, services, bucket, self, needs)
        self.register_outputs({"email": self.email})


class Limits(pulumi.ComponentResource):
    """A role with which the machines stop, start and delete their TPU.

    It is not `roles/tpu.admin`, on purpose: they create TPUs only where recovery is enabled, and
    then as the stack's account for it alone.
    """

    def __init__(
        self, stack: CheckedStack, services: ProjectServices, agent: Identity, tpu: Identity
    ) -> None:
        """`agent` is whom the agent acts as, `tpu` whom the TPU does."""
        super().__init__("tpu-stack:infra:Limits", "limits")
        settings = stack.settings
        right, *others = grants.of_limits(settings, stack.names)
        role: pulumi.Input[str] = right.role
        if settings.limits.role is None:
            role = gcp.projects.IAMCustomRole(
                "agent",
                project=settings.project,
                role_id=f"{stack.names.limits_role}_{week(datetime.now(timezone.utc))}",
                title="Keeps the limits of a tpu-stack",
                permissions=deployer.permissions_of_role(settings),
                opts=services.after(
                    apis.IAM_API, apis.PROJECTS_API, parent=self, ignore_changes=["roleId"]
                ),
            ).name
        needs = [*agent.made, *tpu.made]
        grant([right], stack, services, None, self, needs, role=role)
        grant(others, stack, services, None, self, needs)
        self.register_outputs({})


def week(now: datetime) -> str:
    """Return the part of a role's id that another week changes.

    Google keeps the id of a deleted role for 37 days. It lets the provider bring the role back for
    the first 7, so within the same week; later the role needs another id. The role keeps the one
    that it was made with.
    """
    year, number, _ = now.isocalendar()
    return f"{year}w{number:02}"


def grant(
    given: Iterable[Grant],
    stack: CheckedStack,
    services: ProjectServices,
    bucket: Bucket | None,
    parent: pulumi.Resource,
    needs: Sequence[pulumi.Resource] = (),
    *,
    role: pulumi.Input[str] | None = None,
    member: pulumi.Input[str] | None = None,
) -> list[pulumi.Resource]:
    """Declare grants, unless an administrator grants roles.

    Those on the bucket go with one that goes with the stack, instead of one by one before it.

    Args:
        given: what to grant.
        stack: whose grants they are.
        services: the APIs.
        bucket: what grants on the bucket are on.
        parent: whose resources they are.
        needs: accounts that the stack makes.
        role: instead of the grants' own, if the engine has yet to make it.
        member: the same of the member.
    """
    made: list[pulumi.Resource] = []
    for each in given if stack.settings.grant_roles else ():
        kept = grants.outlives(each, stack.settings)
        its_role, its_member = role or each.role, member or each.member
        if each.on is On.BUCKET and bucket is not None:
            only = each.condition
            form = gcp.storage.BucketIAMMemberConditionArgs
            one: pulumi.Resource = gcp.storage.BucketIAMMember(
                each.name,
                bucket=bucket.name,
                role=its_role,
                member=its_member,
                condition=form(**vars(only)) if only else None,
                opts=pulumi.ResourceOptions(
                    parent=parent,
                    depends_on=needs,
                    deleted_with=bucket.deleted_with,
                    retain_on_delete=kept,
                ),
            )
        elif each.on is On.ACCOUNT:
            one = gcp.serviceaccount.IAMMember(
                each.name,
                service_account_id=(
                    f"projects/{names.project_of(each.target)}/serviceAccounts/{each.target}"
                ),
                role=its_role,
                member=its_member,
                opts=services.after(
                    apis.IAM_API, parent=parent, depends_on=needs, retain_on_delete=kept
                ),
            )
        else:
            own = services.after(
                apis.PROJECTS_API, parent=parent, depends_on=needs, retain_on_delete=kept
            )
            one = gcp.projects.IAMMember(
                each.name, project=each.target, role=its_role, member=its_member, opts=own
            )
        made.append(one)
    return made


# --- What Vertex AI needs to run jobs: its own identity, their account, who may submit them.


_VERTEX_APIS = (apis.VERTEX_API, apis.IAM_API, apis.PROJECTS_API)


class VertexTraining(pulumi.ComponentResource):
    """An account for Vertex AI's custom jobs, with objects of the bucket and a log to write.

    AI Platform had to be granted `roles/ml.serviceAgent` for its TPUs. Vertex AI's own service
    agents get theirs from Google with the API; what a person grants is the right to act as the
    account, which Vertex AI asks of those who submit.
    """

    def __init__(
        self,
        stack: CheckedStack,
        settings: VertexSettings,
        services: ProjectServices,
        bucket: Bucket,
    ) -> None:
        # Loads the dynamic providers, which only stacks with such jobs should wait for.
        from tpu_infra.resources.vertex import VertexJobs

        super().__init__("tpu-stack:infra:VertexTraining", "vertex")
        project = stack.settings.project
        own = services.after(*_VERTEX_APIS, parent=self)
        # Otherwise Google makes it at the first job, which then fails because it has no rights.
        gcp.projects.ServiceIdentity("agent", project=project, service=apis.VERTEX_API, opts=own)
        needs: list[pulumi.Resource] = []
        if settings.service_account is None:
            account = gcp.serviceaccount.Account(
                "runner",
                project=project,
                account_id=stack.names.vertex_account,
                display_name=names.VERTEX,
                description=stack.marked_description,
                opts=services.after(
                    *_VERTEX_APIS, parent=self, ignore_changes=names.KEPT_DESCRIPTION
                ),
            )
            needs.append(account)
        given = grants.of_vertex(stack.settings, stack.names)
        granted = grant(given, stack, services, bucket, self, needs)
        email = stack.names.vertex_email
        # What depends on others goes first: a job that is cancelled still writes its log's end.
        where = {"project": project, "region": settings.region or stack.settings.region}
        VertexJobs(
            "jobs",
            {**where, "account": email},
            services.after(*_VERTEX_APIS, parent=self, depends_on=[*needs, *granted]),
        )
        self.register_outputs({"email": email})
