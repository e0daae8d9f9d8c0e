"""Google's provider for calls that it counts against a project which the caller names."""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

# What the provider below takes from the settings of the one that everything else uses.
_CREDENTIALS = ("accessToken", "credentials", "impersonateServiceAccount")


def billing_provider(project: str, parent: pulumi.Resource) -> gcp.Provider:
    """Google's provider, told in whose name it asks: the budgets' API needs a quota project."""
    config = pulumi.Config("gcp")
    # As secrets, for they would stand in the state otherwise.
    access_token, credentials, account = (config.get_secret(name) for name in _CREDENTIALS)
    return gcp.Provider(
        "billing",
        project=project,
        billing_project=project,
        user_project_override=True,
        access_token=access_token,
        credentials=credentials,
        impersonate_service_account=account,
        opts=pulumi.ResourceOptions(parent=parent),
    )
