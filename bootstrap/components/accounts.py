"""The pipeline's service accounts and their roles."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from bootstrap.settings import BootstrapSettings

# What infra/ creates, changes and deletes, API by API.
DEPLOYER_ROLES = (
    "roles/compute.admin",
    "roles/iam.roleAdmin",
    "roles/iam.serviceAccountAdmin",
    "roles/iam.serviceAccountUser",
    "roles/resourcemanager.projectIamAdmin",
    "roles/serviceusage.serviceUsageAdmin",
    "roles/storage.admin",
    "roles/tpu.admin",
)
# To read all that, the policies included, for previews with refresh and for the drift check.
PREVIEWER_ROLES = (
    "roles/viewer",
    "roles/iam.securityReviewer",
    "roles/storage.bucketViewer",
)
_STATE = {"deployer": "roles/storage.objectAdmin", "previewer": "roles/storage.objectViewer"}
_KEY = {
    "deployer": "roles/cloudkms.cryptoKeyEncrypterDecrypter",
    "previewer": "roles/cloudkms.cryptoKeyDecrypter",
}


@dataclass(frozen=True)
class AccountsArgs:
    """`deploys` and `previews` are the IAM members that may act as the two accounts."""

    settings: BootstrapSettings
    bucket: pulumi.Input[str]
    key: pulumi.Input[str]
    deploys: pulumi.Input[str]
    previews: pulumi.Input[str]
    requires: tuple[pulumi.Resource, ...] = ()


class Accounts(pulumi.ComponentResource):
    """The deployer, which may make and delete stacks, and the previewer, which may only read.

    Neither has keys; the pipeline's tokens are exchanged for theirs.
    """

    deployer: pulumi.Output[str]
    previewer: pulumi.Output[str]

    def __init__(
        self, name: str, args: AccountsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:bootstrap:Accounts", name, None, opts)
        self._args = args
        roles = dict.fromkeys((*DEPLOYER_ROLES, *args.settings.deployer_roles))
        self.deployer = self._account("deployer", tuple(roles), args.deploys)
        self.previewer = self._account("previewer", PREVIEWER_ROLES, args.previews)
        self.register_outputs({"deployer": self.deployer, "previewer": self.previewer})

    def _account(
        self, name: str, roles: tuple[str, ...], who: pulumi.Input[str]
    ) -> pulumi.Output[str]:
        args, settings = self._args, self._args.settings
        account = gcp.serviceaccount.Account(
            name,
            project=settings.project,
            account_id=f"{settings.name_prefix}-{name}",
            display_name=f"{name.capitalize()} of {settings.repository}",
            create_ignore_already_exists=True,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.requires)),
        )
        ours = pulumi.ResourceOptions(parent=account)
        member = pulumi.Output.concat("serviceAccount:", account.email)
        gcp.serviceaccount.IAMMember(
            f"{name}-pipeline",
            service_account_id=account.name,
            role="roles/iam.workloadIdentityUser",
            member=who,
            opts=ours,
        )
        gcp.storage.BucketIAMMember(
            f"{name}-state", bucket=args.bucket, role=_STATE[name], member=member, opts=ours
        )
        gcp.kms.CryptoKeyIAMMember(
            f"{name}-key", crypto_key_id=args.key, role=_KEY[name], member=member, opts=ours
        )
        for project in settings.all_projects:
            for role in roles:
                gcp.projects.IAMMember(
                    f"{name}-{project}-{role.rpartition('/')[2]}",
                    project=project,
                    role=role,
                    member=member,
                    opts=ours,
                )
        email: pulumi.Output[str] = account.email
        return email
