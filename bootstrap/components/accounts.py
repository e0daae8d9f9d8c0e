"""An environment's service accounts and their roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

import pulumi
import pulumi_gcp as gcp

from bootstrap.rights import Rights
from bootstrap.settings import DEPLOYS, PREVIEWS, BootstrapSettings
from infra.components.identity import week
from infra.deployer import OBJECTS_ROLE

_STATE = {DEPLOYS: "roles/storage.objectUser", PREVIEWS: "roles/storage.objectViewer"}
_KEY = {
    DEPLOYS: "roles/cloudkms.cryptoKeyEncrypterDecrypter",
    PREVIEWS: "roles/cloudkms.cryptoKeyDecrypter",
}
# https://docs.cloud.google.com/iam/docs/setting-limits-on-granting-roles (2026-11-24). Google takes
# no default but the empty list, with which the condition holds: bind nothing but rights to grant.
_ONLY = "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly({})"


@dataclass(frozen=True)
class AccountsArgs:
    """The accounts of one environment.

    Attributes:
        settings: of the bootstrap stack.
        environment: its name.
        rights: what the accounts may do in its project.
        bucket: of its state.
        key: of the secrets in that.
        deploys: the IAM member that may act as the deployer.
        previews: the same for the previewer.
        requires: the APIs of the pipeline's project and of its own.
    """

    settings: BootstrapSettings
    environment: str
    rights: Rights
    bucket: pulumi.Input[str]
    key: pulumi.Input[str]
    deploys: pulumi.Input[str]
    previews: pulumi.Input[str]
    requires: tuple[pulumi.Resource, ...] = ()


class Accounts(pulumi.ComponentResource):
    """The deployer, which makes and deletes an environment's stacks, and the previewer.

    Neither has keys; the pipeline's tokens are exchanged for theirs.
    """

    deployer: pulumi.Output[str]
    previewer: pulumi.Output[str]

    def __init__(
        self, name: str, args: AccountsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:bootstrap:Accounts", name, None, opts)
        self._args = args
        rights = args.rights
        deployer = self._account(DEPLOYS, args.deploys)
        previewer = self._account(PREVIEWS, args.previews)
        self._grant(deployer, "deployer", rights.deploys)
        for permission, roles in sorted(rights.grants.items()):
            # One for each kind of resource: a condition names at most ten roles.
            name = f"granter-{permission.split('.')[1]}"
            self._grant(deployer, name, (permission,), _ONLY.format(list(roles)))
        self._grant(previewer, "previewer", rights.looks)
        if rights.objects:
            self._bind(deployer, "objects", OBJECTS_ROLE, rights.objects)
        environment = args.settings.environments[args.environment]
        for role in dict.fromkeys(environment.deployer_roles):
            self._bind(deployer, role.rpartition("/")[2], role)
        if rights.machines:
            self._role(rights.role, rights.role, rights.machines)
        self.deployer, self.previewer = deployer.email, previewer.email
        self.register_outputs({"deployer": self.deployer, "previewer": self.previewer})

    def _account(self, does: str, who: pulumi.Input[str]) -> gcp.serviceaccount.Account:
        args, settings = self._args, self._args.settings
        name = f"{args.environment}-{does}"
        account = gcp.serviceaccount.Account(
            name,
            project=settings.project,
            account_id=settings.account_of(args.environment, does),
            # Google takes a hundred bytes; on GitLab a repository may be below twenty groups.
            display_name=f"{does}s {args.environment} of {settings.repository}"[:100],
            # One that is there already may be another pipeline's.
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
            f"{name}-state", bucket=args.bucket, role=_STATE[does], member=member, opts=ours
        )
        gcp.kms.CryptoKeyIAMMember(
            f"{name}-key", crypto_key_id=args.key, role=_KEY[does], member=member, opts=ours
        )
        return account

    def _grant(
        self,
        account: gcp.serviceaccount.Account,
        name: str,
        permissions: tuple[str, ...],
        condition: str = "",
    ) -> None:
        """Let an account do exactly this in the environment's project."""
        settings = self._args.settings
        role_id = f"{settings.name_prefix}-{name}".replace("-", "_")
        dated = f"{role_id}_{week(datetime.now(timezone.utc))}"
        self._bind(account, name, self._role(role_id, dated, permissions), condition)

    def _role(self, name: str, role_id: str, permissions: tuple[str, ...]) -> pulumi.Output[str]:
        args = self._args
        role: pulumi.Output[str] = gcp.projects.IAMCustomRole(
            f"{args.environment}-{name}",
            project=args.settings.environments[args.environment].project,
            role_id=role_id,
            title=f"tpu-stack: {name}",
            permissions=list(permissions),
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=list(args.requires), ignore_changes=["roleId"]
            ),
        ).name
        return role

    def _bind(
        self,
        account: gcp.serviceaccount.Account,
        name: str,
        role: pulumi.Input[str],
        condition: str = "",
    ) -> None:
        args = self._args
        only: Mapping[str, str] = {"title": "of-the-stack", "expression": condition}
        gcp.projects.IAMMember(
            f"{args.environment}-{name}",
            project=args.settings.environments[args.environment].project,
            role=role,
            member=pulumi.Output.concat("serviceAccount:", account.email),
            condition=only if condition else None,
            opts=pulumi.ResourceOptions(parent=account, depends_on=list(args.requires)),
        )
