"""Who the machines are, and what they may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
import pulumi_gcp as gcp

# Read and write objects; see the bucket itself, which TensorFlow looks up before it writes.
_BUCKET_ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")
# Look the TPU up by its name; write logs.
_PROJECT_ROLES = ("roles/tpu.viewer", "roles/logging.logWriter")


@dataclass(frozen=True)
class IdentityArgs:
    """`account_id` is the part of the account's address before the @.

    `requires` are what each kind of grant waits for: `account` and `project` are APIs.
    `project_roles` are roles on the project beside those that every stack's machines need.
    `bucket_deleted_with` is what takes the bucket's policy along on `destroy`.
    """

    project: str
    account_id: str
    bucket: pulumi.Input[str]
    project_roles: tuple[str, ...] = ()
    bucket_deleted_with: pulumi.Resource | None = None
    requires: Mapping[str, pulumi.Resource] = field(default_factory=dict)


class Identity(pulumi.ComponentResource):
    """One service account for the machines of the stack, with the least roles that the job needs.

    Deliberately has no keys: a machine gets its tokens from the metadata server. No machine waits
    for the grants, which take a while to count anyway: its start-up script does.
    """

    email: pulumi.Output[str]

    def __init__(
        self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Identity", name, None, opts)
        account = gcp.serviceaccount.Account(
            "account",
            project=args.project,
            account_id=args.account_id,
            display_name="Machines of a tpu-stack",
            # An update that is interrupted while the provider waits for the new account (10
            # seconds) has made it without knowing.
            create_ignore_already_exists=True,
            opts=self._after(args, "account"),
        )
        member = pulumi.Output.concat("serviceAccount:", account.email)
        self.email = account.email
        for role in _BUCKET_ROLES:
            gcp.storage.BucketIAMMember(
                role.rpartition("/")[2],
                bucket=args.bucket,
                role=role,
                member=member,
                opts=pulumi.ResourceOptions(parent=self, deleted_with=args.bucket_deleted_with),
            )
        for role in (*_PROJECT_ROLES, *args.project_roles):
            gcp.projects.IAMMember(
                role.rpartition("/")[2],
                project=args.project,
                role=role,
                member=member,
                opts=self._after(args, "project"),
            )
        self.register_outputs({"email": self.email})

    def _after(self, args: IdentityArgs, kind: str) -> pulumi.ResourceOptions:
        api = args.requires.get(kind)
        return pulumi.ResourceOptions(parent=self, depends_on=[api] if api else [])


def grant_bucket_to(
    name: str,
    bucket: pulumi.Input[str],
    email: pulumi.Input[str],
    parent: pulumi.Resource,
    deleted_with: pulumi.Resource | None,
) -> None:
    """Lets another identity (a classic TPU node reads its data by itself) use the bucket."""
    for role in _BUCKET_ROLES:
        gcp.storage.BucketIAMMember(
            f"{name}-{role.rpartition('.')[2]}",
            bucket=bucket,
            role=role,
            member=pulumi.Output.concat("serviceAccount:", email),
            opts=pulumi.ResourceOptions(parent=parent, deleted_with=deleted_with),
        )
