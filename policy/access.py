"""Only an account with few roles has the scope that reaches everything."""

from __future__ import annotations

import re
from collections.abc import Iterator

from policy.machines import Machine, machines
from policy.resource import UNKNOWN, Resource
from policy.rule import ALLOWED, Config, ResourceRule, allowed

_FULL = ("https://www.googleapis.com/auth/cloud-platform", "cloud-platform")
# The accounts that Google makes in each project, as a rule with the role Editor.
_DEFAULT = re.compile(
    r"\d+-compute@developer\.gserviceaccount\.com|.+@appspot\.gserviceaccount\.com"
)


def _check(resource: Resource, config: Config) -> Iterator[str]:
    if resource.matches(config[ALLOWED]):
        return
    for machine in machines(resource):
        account = machine.account
        if account is None or not _has_full_scope(machine) or _is_dedicated(account.value):
            continue
        yield resource.wrong(
            account.path,
            account.value,
            "so a machine with the scope cloud-platform runs as Google's default account, which "
            "may do nearly everything in the project",
            "Name a service account of the stack's own with the roles that the job needs",
        )


def _has_full_scope(machine: Machine) -> bool:
    return machine.scopes is None or any(scope in _FULL for scope in machine.scopes)


def _is_dedicated(email: object) -> bool:
    """Return whether it is no default account; an unknown one belongs to the stack."""
    if email is UNKNOWN:
        return True
    return isinstance(email, str) and "@" in email and not _DEFAULT.fullmatch(email)


FULL_SCOPE = ResourceRule(
    "full-scope-with-own-account",
    "Machines with the scope cloud-platform have a service account of their own.",
    {ALLOWED: allowed("machines that may use the default account")},
    check=_check,
)
