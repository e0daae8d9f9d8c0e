"""The identity pool: it admits the pipeline of one repository, by its tokens, without keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from bootstrap.settings import BootstrapSettings, Forge

ANY_BRANCH = "*"
# What the forges put into their tokens:
# https://docs.github.com/en/actions/reference/security/oidc
# https://docs.gitlab.com/ci/secrets/id_token_authentication/
_ISSUERS: Mapping[Forge, str] = {
    Forge.GITHUB: "https://token.actions.githubusercontent.com",
    Forge.GITLAB: "https://gitlab.com",
}
_REPOSITORY: Mapping[Forge, str] = {
    Forge.GITHUB: "assertion.repository",
    Forge.GITLAB: "assertion.project_path",
}
_REF: Mapping[Forge, str] = {
    Forge.GITHUB: "assertion.ref",
    Forge.GITLAB: "assertion.ref_type + '/' + assertion.ref",
}
_BRANCHES: Mapping[Forge, str] = {Forge.GITHUB: "refs/heads/", Forge.GITLAB: "branch/"}


@dataclass(frozen=True)
class FederationArgs:
    """`requires` are the APIs that it waits for."""

    settings: BootstrapSettings
    requires: tuple[pulumi.Resource, ...] = ()


class Federation(pulumi.ComponentResource):
    """An identity pool with one provider, which takes tokens of the repository alone."""

    provider: pulumi.Output[str]
    """`projects/NUMBER/locations/global/workloadIdentityPools/P/providers/N`."""
    deploys: pulumi.Output[str]
    """The IAM member that is the pipeline of the branch that is deployed."""
    previews: pulumi.Output[str]
    """The IAM member that is every pipeline of the repository."""

    def __init__(
        self, name: str, args: FederationArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:bootstrap:Federation", name, None, opts)
        settings, forge = args.settings, args.settings.forge
        pool = gcp.iam.WorkloadIdentityPool(
            "pool",
            project=settings.project,
            workload_identity_pool_id=settings.name_prefix,
            display_name=settings.name_prefix,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.requires)),
        )
        repository, ref = _REPOSITORY[forge], _REF[forge]
        provider = gcp.iam.WorkloadIdentityPoolProvider(
            "provider",
            project=settings.project,
            workload_identity_pool_id=pool.workload_identity_pool_id,
            workload_identity_pool_provider_id=forge.value,
            # Everybody's tokens have the same issuer.
            attribute_condition=f"{repository} == '{settings.repository}'",
            attribute_mapping={
                "google.subject": "assertion.sub",
                "attribute.repository": repository,
                "attribute.deploys": f"{repository} + '@' + {ref}",
            },
            oidc={"issuer_uri": _ISSUERS[forge]},
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.provider = provider.name
        members = pulumi.Output.concat("principalSet://iam.googleapis.com/", pool.name)
        self.previews = pulumi.Output.concat(members, "/attribute.repository/", settings.repository)
        branch = f"{settings.repository}@{_BRANCHES[forge]}{settings.branch}"
        self.deploys = (
            self.previews
            if settings.branch == ANY_BRANCH
            else pulumi.Output.concat(members, "/attribute.deploys/", branch)
        )
        self.register_outputs({"provider": self.provider})
