"""Whom the machines act as, and what they may do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pulumi
import pulumi_gcp as gcp

from infra import apis, deployer, names
from infra.checks import CheckedStack
from infra.components.bucket import Bucket
from infra.components.services import ProjectServices
from infra.settings import StackSettings, VertexSettings
from tpu_core.paths import DECLARATION

# Read and write objects, and see the bucket: TensorFlow looks it up before it writes.
_BUCKET_ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")
_WRITER, _READER = _BUCKET_ROLES[0], "roles/storage.objectViewer"
JOBS_OBJECTS = ("jobs", "data", "notices/")
"""What a job reads and writes by its own account: nothing that the agent or a person acts by.

TensorFlow also asks for the folders themselves, without a slash. The TPU VM, which has this account
where the VM drives it, writes what is announced for it.
"""
VERTEX_OBJECTS = ("jobs", "data", "archives/", "bell", "queue/")
"""The same on Vertex AI, where a container has one account, which also fetches it and keeps its
record.
"""
# Look the TPU up by its name; write logs.
_PROJECT_ROLES = ("roles/tpu.viewer", "roles/logging.logWriter")


class Identity(pulumi.ComponentResource):
    """One service account for the stack's machines, with the fewest roles that the job needs.

    It has no keys, on purpose: machines get tokens from the metadata server. Machines do not wait
    for the grants, which take a while to count anyway; their start-up scripts do.
    """

    email: pulumi.Output[str]
    name: pulumi.Output[str]
    """`projects/P/serviceAccounts/EMAIL`"""

    def __init__(
        self,
        stack: CheckedStack,
        services: ProjectServices,
        bucket: Bucket,
        machines: Identity | None = None,
    ) -> None:
        """With `machines` it is the account of their jobs, whose tokens they make."""
        super().__init__("tpu-stack:infra:Identity", "identity" if machines is None else "jobs")
        # The URN of a resource has the type of its parent, not its name.
        prefix = "" if machines is None else "jobs-"
        project = stack.settings.project
        account = gcp.serviceaccount.Account(
            f"{prefix}account",
            project=project,
            account_id=stack.names.account if machines is None else stack.names.jobs_account,
            display_name="Machines of a tpu-stack",
            description=stack.marked_description,
            # Google refuses an account that exists, which may be a colleague's; `tpustack recover`
            # adopts what a killed update has made.
            opts=services.after(apis.IAM_API, parent=self, ignore_changes=names.KEPT_DESCRIPTION),
        )
        self.email, self.name = account.email, account.name
        member = pulumi.Output.concat("serviceAccount:", account.email)
        only = () if machines is None else JOBS_OBJECTS
        read_only = read_only_object(stack.settings)
        grant_bucket_to(f"{prefix}storage.", bucket, account.email, self, read_only, only)
        roles = list(_PROJECT_ROLES)
        if stack.settings.is_compute:
            roles.remove("roles/tpu.viewer")  # No TPU API knows its TPU.
        if stack.settings.vm.ops_agent and machines is None:
            roles.append("roles/monitoring.metricWriter")
        for role in roles:
            gcp.projects.IAMMember(
                f"{prefix}{role.rpartition('/')[2]}",
                project=project,
                role=role,
                member=member,
                opts=services.after(apis.PROJECTS_API, parent=self),
            )
        if machines is not None:
            gcp.serviceaccount.IAMMember(
                f"{prefix}tokens",
                service_account_id=account.name,
                role="roles/iam.serviceAccountTokenCreator",
                member=pulumi.Output.concat("serviceAccount:", machines.email),
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({"email": self.email})


class Limits(pulumi.ComponentResource):
    """A role with which the machines stop, start and delete their TPU.

    It is not `roles/tpu.admin`, on purpose: they create TPUs only where recovery is enabled, and
    then as the stack's account for it alone.
    """

    def __init__(
        self, stack: CheckedStack, services: ProjectServices, machines: Identity, tpu: Identity
    ) -> None:
        """`tpu` is whom the TPU acts as."""
        super().__init__("tpu-stack:infra:Limits", "limits")
        settings = stack.settings
        own = services.after(apis.IAM_API, apis.PROJECTS_API, parent=self)
        member = pulumi.Output.concat("serviceAccount:", machines.email)
        role: pulumi.Input[str] = f"projects/{settings.project}/roles/{settings.limits.role}"
        if settings.limits.role is None:
            role = gcp.projects.IAMCustomRole(
                "agent",
                project=settings.project,
                role_id=f"{stack.names.limits_role}_{week(datetime.now(timezone.utc))}",
                title="Keeps the limits of a tpu-stack",
                permissions=deployer.permissions_of_role(creates=settings.recovery.enabled),
                opts=services.after(
                    apis.IAM_API, apis.PROJECTS_API, parent=self, ignore_changes=["roleId"]
                ),
            ).name
        gcp.projects.IAMMember(
            "agent", project=settings.project, role=role, member=member, opts=own
        )
        # A classic node acts as an account of Google's.
        if settings.recovery.enabled and not settings.is_node:
            gcp.serviceaccount.IAMMember(
                "acts-as",
                service_account_id=tpu.name,
                role="roles/iam.serviceAccountUser",
                member=member,
                opts=own,
            )
        self.register_outputs({})


def week(now: datetime) -> str:
    """Return the part of a role's id that another week changes.

    Google keeps the id of a deleted role for 37 days. It lets the provider bring the role back for
    the first 7, so within the same week; later the role needs another id. The role keeps the one
    that it was made with.
    """
    year, number, _ = now.isocalendar()
    return f"{year}w{number:02}"


def read_only_object(settings: StackSettings) -> str | None:
    """Return the object that the agent reads and its account must not write, if there is one."""
    return DECLARATION if settings.recovery.enabled else None


def grant_bucket_to(
    name: str,
    bucket: Bucket,
    email: pulumi.Input[str],
    parent: pulumi.Resource,
    read_only: str | None = None,
    only: tuple[str, ...] = (),
) -> list[pulumi.Resource]:
    """Let an account use the bucket; `name` is what the grants' names begin with.

    The names must stay: for another name the engine makes the same grant, which is there already,
    and then takes it away with the old name. They go with a bucket that goes with the stack,
    instead of one by one before it.
    """
    return [
        gcp.storage.BucketIAMMember(
            f"{name}{role.rpartition('.')[2]}",
            bucket=bucket.name,
            role=role,
            condition=condition,
            member=pulumi.Output.concat("serviceAccount:", email),
            opts=pulumi.ResourceOptions(parent=parent, deleted_with=bucket.deleted_with),
        )
        for role, condition in bucket_grants(bucket.name, read_only, only)
    ]


def bucket_grants(
    bucket: pulumi.Input[str], read_only: str | None, only: tuple[str, ...]
) -> Iterator[tuple[str, gcp.storage.BucketIAMMemberConditionArgs | None]]:
    """Yield each role on the bucket, with the condition under which it counts.

    `read_only` names an object that may be read, but not created, overwritten or deleted. `only`
    limits the grant to objects whose names begin so.

    A list of objects is an access to the bucket, whose name the first condition lets pass. The
    second leaves lists to the other role. Sources: "Resource attributes for IAM Conditions",
    cloud.google.com/iam/docs/conditions-resource-attributes; the bucket needs uniform access,
    cloud.google.com/storage/docs/access-control/iam#conditions.
    """
    objects = pulumi.Output.concat(
        'resource.name.startsWith("projects/_/buckets/', bucket, "/objects/"
    )
    if only:
        begins = [pulumi.Output.concat(objects, each, '")') for each in only]
        either = pulumi.Output.all(*begins).apply(" || ".join)
        yield (
            _WRITER,
            gcp.storage.BucketIAMMemberConditionArgs(title="Only what jobs use", expression=either),
        )
        yield _BUCKET_ROLES[1], None
        return
    if read_only is None:
        yield from ((role, None) for role in _BUCKET_ROLES)
        return
    condition = gcp.storage.BucketIAMMemberConditionArgs(
        title=f"Not {read_only}",
        description="What pulumi up writes and the machines only read",
        expression=pulumi.Output.concat("!", objects, read_only, '")'),
    )
    yield _WRITER, condition
    yield _BUCKET_ROLES[1], None
    yield _READER, None


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
        from infra.resources.vertex import VertexJobs

        super().__init__("tpu-stack:infra:VertexTraining", "vertex")
        project = stack.settings.project
        own = services.after(*_VERTEX_APIS, parent=self)
        # Otherwise Google makes it at the first job, which then fails because it has no rights.
        gcp.projects.ServiceIdentity("agent", project=project, service=apis.VERTEX_API, opts=own)
        account = gcp.serviceaccount.Account(
            "runner",
            project=project,
            account_id=stack.names.vertex_account,
            display_name="Jobs of a tpu-stack on Vertex AI",
            description=stack.marked_description,
            opts=services.after(*_VERTEX_APIS, parent=self, ignore_changes=names.KEPT_DESCRIPTION),
        )
        grants = grant_bucket_to("runner-", bucket, account.email, self, only=VERTEX_OBJECTS)
        writer = gcp.projects.IAMMember(
            "writer",
            project=project,
            role="roles/logging.logWriter",
            member=pulumi.Output.concat("serviceAccount:", account.email),
            opts=own,
        )
        # What depends on others goes first: a job that is cancelled still writes its log's end.
        VertexJobs(
            "jobs",
            {
                "project": project,
                "region": settings.region or stack.settings.region,
                "account": account.email,
            },
            services.after(*_VERTEX_APIS, parent=self, depends_on=[*grants, writer]),
        )
        for submitter in settings.submitters:
            gcp.projects.IAMMember(
                f"user-{submitter}",
                project=project,
                role="roles/aiplatform.user",
                member=submitter,
                opts=own,
            )
            gcp.serviceaccount.IAMMember(
                f"acts-as-{submitter}",
                service_account_id=account.name,
                role="roles/iam.serviceAccountUser",
                member=submitter,
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({"email": account.email})
