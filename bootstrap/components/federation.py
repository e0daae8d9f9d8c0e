"""The identity pool: it admits the pipeline of one repository, by its tokens, without keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

import pulumi
import pulumi_gcp as gcp

from bootstrap.settings import BootstrapSettings, EnvironmentSettings, Forge


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
_CLAIMS: Mapping[Forge, Claims] = {
    Forge.GITHUB: Claims(
        issuer="https://token.actions.githubusercontent.com",
        repository="assertion.repository_id",
        owner="assertion.repository_owner_id",
        run="assertion.run_id",
        ref="assertion.ref",
        branch="refs/heads/{}",
        # It runs for a fork's request, as if it were the branch itself.
        trusted="assertion.event_name != 'pull_request_target'",
    ),
    Forge.GITLAB: Claims(
        issuer="https://gitlab.com",
        repository="assertion.project_id",
        owner="assertion.namespace_id",
        run="assertion.job_id",
        ref="assertion.ref_type + '/' + assertion.ref + '/' + assertion.ref_protected",
        branch="branch/{}/true",
        trusted="assertion.pipeline_source in ['push', 'web', 'schedule', 'merge_request_event']",
    ),
}


@dataclass(frozen=True)
class FederationArgs:
    """`requires` are the APIs that it waits for."""

    settings: BootstrapSettings
    requires: tuple[pulumi.Resource, ...] = ()


class Federation(pulumi.ComponentResource):
    """An identity pool with two providers, which take tokens of the repository alone.

    Tokens that deploy name their environment, whose approval the forge has asked for by then. Those
    that preview have none.
    """

    deploy_provider: pulumi.Output[str]
    """`projects/NUMBER/locations/global/workloadIdentityPools/P/providers/N`."""
    preview_provider: pulumi.Output[str]

    def __init__(
        self, name: str, args: FederationArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:bootstrap:Federation", name, None, opts)
        self._settings = args.settings
        self._claims = _CLAIMS[args.settings.forge]
        pool = gcp.iam.WorkloadIdentityPool(
            "pool",
            project=args.settings.project,
            # Google keeps the id of a deleted pool for thirty days, so each new one has another.
            workload_identity_pool_id=(
                f"{args.settings.name_prefix}-{datetime.now(timezone.utc):%y%m%d%H%M%S}"
            ),
            display_name=args.settings.name_prefix,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=list(args.requires),
                ignore_changes=["workloadIdentityPoolId"],
            ),
        )
        ref = self._claims.ref
        self._members = pulumi.Output.concat("principalSet://iam.googleapis.com/", pool.name)
        deploys = f"assertion.environment + '@' + {ref}"
        self.deploy_provider = self._trust(
            pool,
            "deploy",
            "has(assertion.environment)",
            environment="assertion.environment",
            deploys=deploys,
        )
        # So that a job of one environment can't read another.
        without = "!has(assertion.environment)"
        self.preview_provider = self._trust(
            pool, "preview", without, repository=self._claims.repository, previews=ref
        )
        outputs = {"deploy": self.deploy_provider, "preview": self.preview_provider}
        self.register_outputs(outputs)

    def deploys(self, name: str, environment: EnvironmentSettings) -> pulumi.Output[str]:
        """Return the IAM member that is a job of this environment, on the branch that deploys."""
        if environment.like:
            return pulumi.Output.concat(self._members, f"/attribute.environment/{name}")
        return pulumi.Output.concat(self._members, f"/attribute.deploys/{name}@{self._branch}")

    def previews(self, environment: EnvironmentSettings) -> pulumi.Output[str]:
        """Return the IAM member that previews an environment's stacks: the branch, or everybody."""
        if environment.previews_requests or environment.like:
            number = self._settings.repository_id
            return pulumi.Output.concat(self._members, f"/attribute.repository/{number}")
        return pulumi.Output.concat(self._members, f"/attribute.previews/{self._branch}")

    @property
    def _branch(self) -> str:
        return self._claims.branch.format(self._settings.branch)

    def _trust(
        self, pool: gcp.iam.WorkloadIdentityPool, name: str, only: str, **attributes: str
    ) -> pulumi.Output[str]:
        settings, claims = self._settings, self._claims
        provider = gcp.iam.WorkloadIdentityPoolProvider(
            name,
            project=settings.project,
            workload_identity_pool_id=pool.workload_identity_pool_id,
            workload_identity_pool_provider_id=f"{settings.forge.value}-{name}",
            # Everybody's tokens have the same issuer. Names can be taken over, numbers can't.
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
