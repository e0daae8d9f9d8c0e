"""What the pipeline needs: state buckets, keys, an identity pool and accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp

import tpu_bootstrap.settings as config
import tpu_infra.components.services as services
from tpu_infra.components.identity import week
from tpu_infra.deployer import OBJECTS_ROLE

LABELS: Mapping[str, str] = {"managed-by": "pulumi", "tpu-stack": "pipeline"}
# Ninety days, which Google's documentation of key rotation suggests:
# https://cloud.google.com/kms/docs/key-rotation
_ROTATION = f"{90 * 24 * 3600}s"
_STATE_ROLES = {
    config.DEPLOYS: "roles/storage.objectUser",
    config.PREVIEWS: "roles/storage.objectViewer",
}
_KEY_ROLES = {
    config.DEPLOYS: "roles/cloudkms.cryptoKeyEncrypterDecrypter",
    config.PREVIEWS: "roles/cloudkms.cryptoKeyDecrypter",
}
# https://docs.cloud.google.com/iam/docs/setting-limits-on-granting-roles (2026-11-24). Google takes
# no default but the empty list, with which the condition holds: bind nothing but rights to grant.
_ONLY = "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly({})"


class State(pulumi.ComponentResource):
    """A private bucket with the old versions of everything.

    It is protected: without it the state of its stacks is lost.
    """

    bucket: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        settings: config.BootstrapSettings,
        bucket: str,
        requires: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("tpu-stack:bootstrap:State", name)
        old: gcp.storage.BucketLifecycleRuleConditionArgsDict = {
            "num_newer_versions": config.OLD_VERSIONS,
            "with_state": "ARCHIVED",
        }
        self.bucket = gcp.storage.Bucket(
            f"{name}-bucket",
            name=bucket,
            project=settings.project,
            location=settings.region.upper(),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            versioning={"enabled": True},
            soft_delete_policy={"retention_duration_seconds": config.SOFT_DELETE},
            lifecycle_rules=[{"action": {"type": "Delete"}, "condition": old}],
            labels=dict(LABELS),
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(requires), protect=True),
        ).name
        self.register_outputs({"bucket": self.bucket})


class Keys(pulumi.ComponentResource):
    """A ring of keys that are rotated, each protected: without it its stacks' secrets are lost."""

    keys: Mapping[str, pulumi.Output[str]]
    """By environment: `projects/P/locations/L/keyRings/R/cryptoKeys/K`."""

    def __init__(
        self, settings: config.BootstrapSettings, requires: Sequence[pulumi.Resource]
    ) -> None:
        super().__init__("tpu-stack:bootstrap:Keys", "keys")
        kept = pulumi.ResourceOptions(parent=self, depends_on=list(requires), protect=True)
        ring = gcp.kms.KeyRing(
            "ring",
            name=settings.name_prefix,
            project=settings.project,
            location=settings.region,
            opts=kept,
        )
        self.keys = {
            name: gcp.kms.CryptoKey(
                f"{name}-key",
                name=name,
                key_ring=ring.id,
                rotation_period=_ROTATION,
                labels=dict(LABELS),
                opts=kept,
            ).id
            for name in settings.environments
        }
        self.register_outputs({})


@dataclass(frozen=True)
class Claims:
    """What a forge puts into its tokens.

    Attributes:
        issuer: who signs them.
        repository: the repository's number.
        owner: the number of its owner, or of its namespace.
        run: the number of the run or job.
        ref: an expression for what the pipeline runs on.
        branch: what that is for a branch whose pipeline may deploy.
        trusted: which pipelines are let in at all.
    """

    issuer: str
    repository: str
    owner: str
    run: str
    ref: str
    branch: str
    trusted: str


# https://docs.github.com/en/actions/reference/security/oidc
# https://docs.gitlab.com/ci/secrets/id_token_authentication/
_CLAIMS: Mapping[config.Forge, Claims] = {
    config.Forge.GITHUB: Claims(
        issuer="https://token.actions.githubusercontent.com",
        repository="assertion.repository_id",
        owner="assertion.repository_owner_id",
        run="assertion.run_id",
        ref="assertion.ref",
        branch="refs/heads/{}",
        # It runs for a fork's request, as if it were the branch itself.
        trusted="assertion.event_name != 'pull_request_target'",
    ),
    config.Forge.GITLAB: Claims(
        issuer="https://gitlab.com",
        repository="assertion.project_id",
        owner="assertion.namespace_id",
        run="assertion.job_id",
        ref="assertion.ref_type + '/' + assertion.ref + '/' + assertion.ref_protected",
        branch="branch/{}/true",
        trusted="assertion.pipeline_source in ['push', 'web', 'schedule', 'merge_request_event']",
    ),
}


class Federation(pulumi.ComponentResource):
    """An identity pool with two providers, which take tokens of the repository alone.

    Tokens that deploy name their environment, whose approval the forge has asked for by then. Those
    that preview have none.
    """

    deploy_provider: pulumi.Output[str]
    """`projects/NUMBER/locations/global/workloadIdentityPools/P/providers/N`."""
    preview_provider: pulumi.Output[str]

    def __init__(
        self, settings: config.BootstrapSettings, requires: Sequence[pulumi.Resource]
    ) -> None:
        super().__init__("tpu-stack:bootstrap:Federation", "federation")
        self._settings, self._claims = settings, _CLAIMS[settings.forge]
        self._branch = self._claims.branch.format(settings.branch)
        # Google keeps the id of a deleted pool for thirty days, so each new one has another.
        pool_id = f"{settings.name_prefix}-{datetime.now(timezone.utc):%y%m%d%H%M%S}"
        pool = gcp.iam.WorkloadIdentityPool(
            "pool",
            project=settings.project,
            workload_identity_pool_id=pool_id,
            display_name=settings.name_prefix,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=list(requires), ignore_changes=["workloadIdentityPoolId"]
            ),
        )
        ref = self._claims.ref
        self._members = pulumi.Output.concat("principalSet://iam.googleapis.com/", pool.name)
        self.deploy_provider = self._trust(
            pool,
            "deploy",
            "has(assertion.environment)",
            environment="assertion.environment",
            deploys=f"assertion.environment + '@' + {ref}",
        )
        # So that a job of one environment can't read another.
        without = "!has(assertion.environment)"
        self.preview_provider = self._trust(
            pool, "preview", without, repository=self._claims.repository, previews=ref
        )
        self.register_outputs({"deploy": self.deploy_provider, "preview": self.preview_provider})

    def deploys(self, name: str, environment: config.EnvironmentSettings) -> pulumi.Output[str]:
        """Return the IAM member that is a job of this environment, on the branch that deploys."""
        if environment.like:
            return pulumi.Output.concat(self._members, f"/attribute.environment/{name}")
        return pulumi.Output.concat(self._members, f"/attribute.deploys/{name}@{self._branch}")

    def previews(self, environment: config.EnvironmentSettings) -> pulumi.Output[str]:
        """Return the IAM member that previews an environment's stacks: the branch, or all jobs."""
        if environment.previews_requests or environment.like:
            number = self._settings.repository_id
            return pulumi.Output.concat(self._members, f"/attribute.repository/{number}")
        return pulumi.Output.concat(self._members, f"/attribute.previews/{self._branch}")

    def _trust(
        self, pool: gcp.iam.WorkloadIdentityPool, name: str, only: str, **attributes: str
    ) -> pulumi.Output[str]:
        settings, claims = self._settings, self._claims
        provider = gcp.iam.WorkloadIdentityPoolProvider(
            name,
            project=settings.project,
            workload_identity_pool_id=pool.workload_identity_pool_id,
            workload_identity_pool_provider_id=f"{settings.forge.value}-{name}",
            # All tokens of a forge have the same issuer. Names can be taken over, numbers can't.
            attribute_condition=(
                f"{claims.repository} == '{settings.repository_id}' && "
                f"{claims.owner} == '{settings.owner_id}' && {claims.trusted} && {only}"
            ),
            attribute_mapping={
                # Google takes 127 bytes; `sub` has the names of repository, branch or environment.
                "google.subject": f"{claims.repository} + '/' + {claims.run}",
                **{f"attribute.{key}": value for key, value in attributes.items()},
            },
            oidc={"issuer_uri": claims.issuer},
            opts=pulumi.ResourceOptions(parent=self),
        )
        described: pulumi.Output[str] = provider.name
        return described


class Accounts(pulumi.ComponentResource):
    """The deployer, which makes and deletes an environment's stacks, and the previewer.

    Neither has keys; the pipeline's tokens are exchanged for theirs.
    """

    deployer: pulumi.Output[str]
    previewer: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        settings: config.BootstrapSettings,
        rights: config.Rights,
        bucket: pulumi.Input[str],
        key: pulumi.Input[str],
        federation: Federation,
        requires: Sequence[pulumi.Resource],
    ) -> None:
        """`bucket` has the environment's state, and `key` encrypts the secrets in it."""
        super().__init__("tpu-stack:bootstrap:Accounts", name)
        self._name, self._settings, self._requires = name, settings, list(requires)
        self._bucket, self._key = bucket, key
        environment = settings.environments[name]
        self._project = environment.project
        deployer = self._account(config.DEPLOYS, federation.deploys(name, environment))
        previewer = self._account(config.PREVIEWS, federation.previews(environment))
        self._grant(deployer, "deployer", rights.deploys)
        for permission, roles in sorted(rights.grants.items()):
            # One for each kind of resource: a condition names at most ten roles.
            granter = f"granter-{permission.split('.')[1]}"
            self._grant(deployer, granter, (permission,), _ONLY.format(list(roles)))
        self._grant(previewer, "previewer", rights.looks)
        if rights.objects:
            self._bind(deployer, "objects", OBJECTS_ROLE, rights.objects)
        for role in dict.fromkeys(environment.deployer_roles):
            self._bind(deployer, role.rpartition("/")[2], role)
        if rights.machines:
            self._role(rights.role, rights.role, rights.machines)
        self.deployer, self.previewer = deployer.email, previewer.email
        self.register_outputs({"deployer": self.deployer, "previewer": self.previewer})

    def _account(self, does: str, member: pulumi.Input[str]) -> gcp.serviceaccount.Account:
        settings, name = self._settings, f"{self._name}-{does}"
        account = gcp.serviceaccount.Account(
            name,
            project=settings.project,
            account_id=settings.account_of(self._name, does),
            # Google takes a hundred bytes; on GitLab a repository may be below twenty groups.
            display_name=f"{does}s {self._name} of {settings.repository}"[:100],
            # Google refuses one that exists, which may be another pipeline's.
            opts=pulumi.ResourceOptions(parent=self, depends_on=self._requires),
        )
        own = pulumi.ResourceOptions(parent=account)
        email = pulumi.Output.concat("serviceAccount:", account.email)
        gcp.serviceaccount.IAMMember(
            f"{name}-pipeline",
            service_account_id=account.name,
            role="roles/iam.workloadIdentityUser",
            member=member,
            opts=own,
        )
        gcp.storage.BucketIAMMember(
            f"{name}-state", bucket=self._bucket, role=_STATE_ROLES[does], member=email, opts=own
        )
        gcp.kms.CryptoKeyIAMMember(
            f"{name}-key", crypto_key_id=self._key, role=_KEY_ROLES[does], member=email, opts=own
        )
        return account

    def _grant(
        self,
        account: gcp.serviceaccount.Account,
        name: str,
        permissions: Sequence[str],
        condition: str = "",
    ) -> None:
        """Let an account do exactly this in the environment's project."""
        role_id = f"{self._settings.name_prefix}-{name}".replace("-", "_")
        dated = f"{role_id}_{week(datetime.now(timezone.utc))}"
        self._bind(account, name, self._role(role_id, dated, permissions), condition)

    def _role(self, name: str, role_id: str, permissions: Sequence[str]) -> pulumi.Output[str]:
        role: pulumi.Output[str] = gcp.projects.IAMCustomRole(
            f"{self._name}-{name}",
            project=self._project,
            role_id=role_id,
            title=f"tpu-stack: {name}",
            permissions=list(permissions),
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=self._requires, ignore_changes=["roleId"]
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
        gcp.projects.IAMMember(
            f"{self._name}-{name}",
            project=self._project,
            role=role,
            member=pulumi.Output.concat("serviceAccount:", account.email),
            condition={"title": "of-the-stack", "expression": condition} if condition else None,
            opts=pulumi.ResourceOptions(parent=account, depends_on=self._requires),
        )


# --- The whole program as one function, which tests call with settings of their own.

_APIS = (
    "cloudkms.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "storage.googleapis.com",
    "sts.googleapis.com",
)
_ENVIRONMENTS_APIS = ("cloudresourcemanager.googleapis.com", "iam.googleapis.com")


def declare(settings: config.BootstrapSettings, root: Path) -> dict[str, pulumi.Input[object]]:
    """Declare everything and return the outputs; `root` has the stacks' files."""
    rights = config.rights_of(settings, root)
    enabled = list(services.ProjectServices(settings.project, _APIS).enabled.values())
    State("own", settings, settings.bucket, enabled)
    keys = Keys(settings, enabled).keys
    federation = Federation(settings, enabled)
    environments = {}
    for name, environment in settings.environments.items():
        state = State(name, settings, settings.bucket_of(name), enabled).bucket
        # What the environment's project needs before its accounts can have a role there.
        of_project = [
            services.enabled(f"{name}-{api}", environment.project, api)
            for api in _ENVIRONMENTS_APIS
        ]
        requires = [*enabled, *of_project]
        accounts = Accounts(name, settings, rights[name], state, keys[name], federation, requires)
        environments[name] = {
            "backend_url": pulumi.Output.concat("gs://", state),
            "secrets_provider": pulumi.Output.concat("gcpkms://", keys[name]),
            "deployer": accounts.deployer,
            "previewer": accounts.previewer,
        }
    return _exported(settings, federation, environments, rights)


def _exported(
    settings: config.BootstrapSettings,
    federation: Federation,
    environments: Mapping[str, Any],
    rights: Mapping[str, config.Rights],
) -> dict[str, pulumi.Input[object]]:
    """Export what the pipeline needs to know, as one JSON text for a variable of the forge.

    Environments are `previewed` for requests, or `planned` once these are merged. TPUs of those
    that are `limited` are deleted when their time is up, or when their slice has lost a machine.
    """
    deployed = {name: e for name, e in settings.environments.items() if not e.like}
    previewed = [name for name, each in deployed.items() if each.previews_requests]
    pipeline = pulumi.Output.json_dumps(
        {
            "deploy_provider": federation.deploy_provider,
            "preview_provider": federation.preview_provider,
            "deployed": list(deployed),
            "previewed": previewed,
            "planned": [name for name in deployed if name not in previewed],
            "limited": [name for name in deployed if rights[name].limited],
            "environments": environments,
        }
    )
    pulumi.export("pipeline", pipeline)
    return {"pipeline": pipeline}
