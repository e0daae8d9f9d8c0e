"""Checks a stack before the engine is started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from infra.catalog import Catalog
from infra.checks import ensure_valid, with_checks
from infra.checks.context import Context
from infra.names import names_of
from infra.settings import StackSettings
from infra.settings.base import SettingsError
from infra.settings.parse import load_stack_file, load_yaml, stack_path
from tpustack.errors import UsageError
from tpustack.project import BACKEND

_PASSPHRASES = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


class StackError(Exception):
    """A reason why nothing can be done with a stack."""


def checked(
    root: Path, stack: str, catalog: Catalog, environment: Mapping[str, str]
) -> StackSettings:
    """Return the stack's settings. Raises StackError with everything that is wrong with them."""

    def context(settings: StackSettings) -> Context:
        return Context(stack, root, catalog, names_of(settings, stack))

    try:
        settings = load_stack_file(stack_path(root, stack))
        ensure_valid(settings, context(settings))
    except SettingsError as error:
        raise StackError(str(with_checks(error, context))) from None
    if problem := missing_secret(stack_path(root, stack), environment):
        raise StackError(problem)
    return settings


def missing_secret(path: Path, environment: Mapping[str, str]) -> str:
    """Return what is missing to read the secrets of a stack file; empty if nothing is."""
    known = {**os.environ, **environment}
    provider = load_yaml(path.read_text(encoding="utf-8")).get("secretsprovider")
    if provider not in (None, "passphrase") or any(known.get(name) for name in _PASSPHRASES):
        return ""
    return (
        f"{_PASSPHRASES[0]}: (not set), but the secrets of {path.name} are kept with a passphrase. "
        "Hand it to the pipeline as a secret of that name, or keep them with a key: "
        "`pulumi stack change-secrets-provider gcpkms://KEY` (docs/gitops.md). "
        "Nothing was created or changed."
    )


def require_backend(environment: Mapping[str, str]) -> None:
    """Raise UsageError unless the environment says where the state is."""
    if not {**os.environ, **environment}.get(BACKEND):
        raise UsageError(
            f"{BACKEND} is not set. It says where the stacks' state is kept, for example "
            "gs://MY-STATE-BUCKET, the output backend_url of the stack of bootstrap/"
        )
