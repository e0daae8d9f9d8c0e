"""The whole program as one function, which tests call with settings of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp

import infra.components.services as apis_of
from bootstrap.components import Accounts, Budget, Federation, Keys, State
from bootstrap.settings import BootstrapSettings, Rights, rights_of
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


def declare(settings: BootstrapSettings, root: Path) -> dict[str, pulumi.Input[object]]:
    """Declare everything and return the outputs; `root` has the stacks' files."""
    rights = rights_of(settings, root)
    apis = (*_APIS, _BUDGETS_API) if settings.budget else _APIS
    services = ProjectServices(settings.project, apis)
    enabled = list(services.enabled.values())
    State("own", settings, settings.bucket, enabled)
    keys = Keys(settings, enabled).keys
    federation = Federation(settings, enabled)
    environments = {}
    for name, environment in settings.environments.items():
        state = State(name, settings, settings.bucket_of(name), enabled).bucket
        requires = [*enabled, *_enabled(name, environment.project)]
        accounts = Accounts(name, settings, rights[name], state, keys[name], federation, requires)
        environments[name] = {
            "backend_url": pulumi.Output.concat("gs://", state),
            "secrets_provider": pulumi.Output.concat("gcpkms://", keys[name]),
            "deployer": accounts.deployer,
            "previewer": accounts.previewer,
        }
    if settings.budget:
        Budget(settings, settings.budget, enabled)
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
