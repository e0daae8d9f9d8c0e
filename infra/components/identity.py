"""The machines' service account and its roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pulumi
import pulumi_gcp as gcp

from infra.components import mark, projects, storage
from infra.components.bucket import Bucket

# Read and write objects, and see the bucket: TensorFlow looks it up before it writes.
_BUCKET_ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")
_WRITER, _READER = _BUCKET_ROLES[0], "roles/storage.objectViewer"
# What a job writes, and reads, by its own account: nothing that the agent or a person acts by.
# TensorFlow also asks for the folders themselves, without a slash. The TPU VM, which has this
# account where the VM drives it, writes what is announced for it.
JOBS_OBJECTS = ("jobs", "data", "notices/")
# On Vertex AI its container has one account, which also fetches it and keeps its record.
VERTEX_OBJECTS = ("jobs", "data", "archives/", "bell", "queue/")
# Look the TPU up by its name; write logs.
_PROJECT_ROLES = ("roles/tpu.viewer", "roles/logging.logWriter")


@dataclass(frozen=True)
class IdentityArgs:
    """The account to declare.

    Attributes:
        account_id: the part of its address before the @.
        read_only: an object of the bucket that they may read, but not write or delete.
        project_roles: roles on the project beside those that all machines need.
        machines: if it is of their jobs, the address of the account that makes its tokens.
        bucket_deleted_with: the bucket, if `destroy` deletes it along with its policy.
        requires: the API that each kind of grant (`account`, `project`) waits for.
    """

    project: str
    account_id: str
    bucket: pulumi.Input[str]
    read_only: str | None = None
    project_roles: tuple[str, ...] = ()
    machines: pulumi.Input[str] | None = None
    bucket_deleted_with: pulumi.Resource | None = None
    requires: Mapping[str, pulumi.Resource] = field(default_factory=dict)


class Identity(pulumi.ComponentResource):
    """One service account for the stack's machines, with the fewest roles that the job needs.

    It has no keys, on purpose: machines get tokens from the metadata server. Machines do not wait
    for the grants, which take a while to count anyway; their start-up scripts do.
    """

    email: pulumi.Output[str]
    name: pulumi.Output[str]
    """`projects/P/serviceAccounts/EMAIL`"""

    def __init__(
        self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Identity", name, None, opts)
        # An address in the engine has the kind of a parent, and not its name.
        prefix = "" if name == "identity" else f"{name}-"
        account = gcp.serviceaccount.Account(
            f"{prefix}account",
            project=args.project,
            account_id=args.account_id,
            display_name="Machines of a tpu-stack",
            description=mark.description(),
            # An account that is there already may be a colleague's: Google refuses it, and
            # `tpustack recover` takes in what a killed update has made.
            opts=pulumi.ResourceOptions.merge(
                self._after(args, "account"),
                pulumi.ResourceOptions(
                    # Earlier releases took any account.
                    ignore_changes=["createIgnoreAlreadyExists", *mark.KEPT_DESCRIPTION]
                ),
            ),
        )
        member = pulumi.Output.concat("serviceAccount:", account.email)
        self._args = args
        self.email = account.email
        self.name = account.name
        only = JOBS_OBJECTS if args.machines is not None else ()
        for role, condition in _bucket_grants(args.bucket, args.read_only, only):
            storage.BucketIAMMember(
                f"{prefix}{role.rpartition('/')[2]}",
                bucket=args.bucket,
                role=role,
                member=member,
                condition=condition,
                opts=pulumi.ResourceOptions(parent=self, deleted_with=args.bucket_deleted_with),
            )
        for role in (*_PROJECT_ROLES, *args.project_roles):
            projects.IAMMember(
                f"{prefix}{role.rpartition('/')[2]}",
                project=args.project,
                role=role,
                member=member,
                opts=self._after(args, "project"),
            )
        if args.machines is not None:
            gcp.serviceaccount.IAMMember(
                f"{prefix}tokens",
                service_account_id=account.name,
                role="roles/iam.serviceAccountTokenCreator",
                member=pulumi.Output.concat("serviceAccount:", args.machines),
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({"email": self.email})

    def of_jobs(self, account_id: str) -> Identity:
        """Declare whom jobs of these machines act as, by tokens that the machines make."""
        args = replace(self._args, account_id=account_id, project_roles=(), machines=self.email)
        return Identity("jobs", args)

    def _after(self, args: IdentityArgs, kind: str) -> pulumi.ResourceOptions:
        api = args.requires.get(kind)
        return pulumi.ResourceOptions(parent=self, depends_on=[api] if api else [])


def grant_bucket_to(
    name: str,
    bucket: Bucket,
    email: pulumi.Input[str],
    parent: pulumi.Resource,
    read_only: str | None = None,
    only: tuple[str, ...] = (),
) -> list[pulumi.Resource]:
    """Let another identity use the bucket: a classic TPU node reads its data itself."""
    return [
        storage.BucketIAMMember(
            f"{name}-{role.rpartition('.')[2]}",
            bucket=bucket.name,
            role=role,
            condition=condition,
            member=pulumi.Output.concat("serviceAccount:", email),
            opts=pulumi.ResourceOptions(parent=parent, deleted_with=bucket.deleted_with),
        )
        for role, condition in _bucket_grants(bucket.name, read_only, only)
    ]


def _bucket_grants(
    bucket: pulumi.Input[str], read_only: str | None, only: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, object] | None]]:
    """Yield each role on the bucket, with the condition under which it counts.

    A list of objects is an access to the bucket, whose name the first condition lets pass; what it
    leaves out is to create, to overwrite and to delete this one object. The second leaves lists to
    the other role. Sources: "Resource attributes for IAM Conditions",
    cloud.google.com/iam/docs/conditions-resource-attributes; the bucket needs uniform access,
    cloud.google.com/storage/docs/access-control/iam#conditions.
    """
    objects = pulumi.Output.concat(
        'resource.name.startsWith("projects/_/buckets/', bucket, "/objects/"
    )
    if only:
        begins = [pulumi.Output.concat(objects, each, '")') for each in only]
        expression = pulumi.Output.all(*begins).apply(" || ".join)
        yield _WRITER, {"title": "Only what jobs use", "expression": expression}
        yield _BUCKET_ROLES[1], None
        return
    if read_only is None:
        yield from ((role, None) for role in _BUCKET_ROLES)
        return
    condition = {
        "title": f"Not {read_only}",
        "description": "What pulumi up writes and the machines only read",
        "expression": pulumi.Output.concat("!", objects, read_only, '")'),
    }
    for role in _BUCKET_ROLES:
        yield role, condition if role == _WRITER else None
    yield _READER, None
