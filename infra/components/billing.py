"""A second Google provider, whose calls count against the stack's project."""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

# Settings that it shares with the default provider.
_CREDENTIALS = ("accessToken", "credentials", "impersonateServiceAccount")


def billing_provider(project: str, parent: pulumi.Resource) -> gcp.Provider:
    """Declare a provider with a quota project, which the API of budgets requires."""
    config = pulumi.Config("gcp")
    # Secret, since the state would hold them as plain text otherwise.
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
