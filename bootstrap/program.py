"""The whole program as one function, which tests call with settings of their own."""

from __future__ import annotations

import pulumi

from bootstrap.components.accounts import Accounts, AccountsArgs
from bootstrap.components.budget import Budget, BudgetArgs
from bootstrap.components.federation import Federation, FederationArgs
from bootstrap.components.state import State, StateArgs
from bootstrap.settings import BootstrapSettings
from infra.components.services import ProjectServices, ProjectServicesArgs

_APIS = (
    "cloudkms.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "storage.googleapis.com",
    "sts.googleapis.com",
)
_BUDGETS_API = "billingbudgets.googleapis.com"
LABELS = {"managed-by": "pulumi", "tpu-stack": "pipeline"}


def declare(settings: BootstrapSettings) -> dict[str, pulumi.Input[object]]:
    """Declare everything and return the outputs."""
    apis = (*_APIS, _BUDGETS_API) if settings.budget else _APIS
    services = ProjectServices("services", ProjectServicesArgs(settings.project, apis, enable=True))
    enabled = tuple(services.enabled.values())
    state = State("state", StateArgs(settings, LABELS, enabled))
    federation = Federation("federation", FederationArgs(settings, enabled))
    accounts = Accounts(
        "accounts",
        AccountsArgs(
            settings,
            bucket=state.bucket,
            key=state.key,
            deploys=federation.deploys,
            previews=federation.previews,
            requires=enabled,
        ),
    )
    if settings.budget:
        Budget("budget", BudgetArgs(settings, settings.budget, enabled))
    outputs: dict[str, pulumi.Input[object]] = {
        "backend_url": pulumi.Output.concat("gs://", state.bucket),
        "secrets_provider": pulumi.Output.concat("gcpkms://", state.key),
        "workload_identity_provider": federation.provider,
        "deployer": accounts.deployer,
        "previewer": accounts.previewer,
    }
    for name, value in outputs.items():
        pulumi.export(name, value)
    return outputs
