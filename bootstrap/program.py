"""The whole program as one function, which tests call with settings of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp

import infra.components.services as apis_of
from bootstrap.components.accounts import Accounts, AccountsArgs
from bootstrap.components.budget import Budget, BudgetArgs
from bootstrap.components.federation import Federation, FederationArgs
from bootstrap.components.state import Keys, KeysArgs, State, StateArgs
from bootstrap.rights import Rights, rights_of
from bootstrap.settings import BootstrapSettings
from infra.components.services import ProjectServices

_APIS = (
    "cloudkms.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "storage.googleapis.com",
    "sts.googleapis.com",
)
# What an environment's project needs before its accounts can have a role there.
_ENVIRONMENTS_APIS = ("cloudresourcemanager.googleapis.com", "iam.googleapis.com")
_BUDGETS_API = "billingbudgets.googleapis.com"
LABELS = {"managed-by": "pulumi", "tpu-stack": "pipeline"}


def declare(settings: BootstrapSettings, root: Path) -> dict[str, pulumi.Input[object]]:
    """Declare everything and return the outputs; `root` has the stacks' files."""
    rights = rights_of(settings, root)
    apis = (*_APIS, _BUDGETS_API) if settings.budget else _APIS
    services = ProjectServices(settings.project, apis)
    enabled = tuple(services.enabled.values())
    project, region = settings.project, settings.region
    State("own", StateArgs(project, region, settings.bucket, LABELS, enabled))
    names = tuple(settings.environments)
    keys = Keys("keys", KeysArgs(project, region, settings.name_prefix, names, LABELS, enabled))
    federation = Federation("federation", FederationArgs(settings, enabled))
    environments = {}
    for name, environment in settings.environments.items():
        bucket = settings.bucket_of(name)
        state = State(name, StateArgs(project, region, bucket, LABELS, enabled)).bucket
        accounts = Accounts(
            name,
            AccountsArgs(
                settings,
                name,
                rights[name],
                bucket=state,
                key=keys.keys[name],
                deploys=federation.deploys(name, environment),
                previews=federation.previews(environment),
                requires=(*enabled, *_enabled(name, environment.project)),
            ),
        )
        environments[name] = {
            "backend_url": pulumi.Output.concat("gs://", state),
            "secrets_provider": pulumi.Output.concat("gcpkms://", keys.keys[name]),
            "deployer": accounts.deployer,
            "previewer": accounts.previewer,
        }
    if settings.budget:
        Budget("budget", BudgetArgs(settings, settings.budget, enabled))
    return _exported(settings, federation, environments, rights)


def _enabled(name: str, project: str) -> list[pulumi.Resource]:
    """Enable what an environment's project needs, never to disable it again."""
    return [
        gcp.projects.Service(
            f"{name}-{service}",
            project=project,
            service=service,
            disable_on_destroy=False,
            opts=pulumi.ResourceOptions(hooks=apis_of.until_they_answer()),
        )
        for service in _ENVIRONMENTS_APIS
    ]


def _exported(
    settings: BootstrapSettings,
    federation: Federation,
    environments: Mapping[str, Any],
    rights: Mapping[str, Rights],
) -> dict[str, pulumi.Input[object]]:
    """Export what the pipeline needs to know, as one JSON text for a variable of the forge.

    Environments are `previewed` for requests, or `planned` once these are merged. TPUs of those
    that are `limited` are deleted when their time is up.
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
