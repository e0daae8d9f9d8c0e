"""The question whether the caller may do what deploying the stack takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from infra.deployer import permissions_of
from tpustack.live.finding import OK, WRONG, Asked, Finding

_PROJECT = "https://cloudresourcemanager.googleapis.com/v1/projects/{}:testIamPermissions"
_ACCOUNT = "https://cloudbilling.googleapis.com/v1/billingAccounts/{}:testIamPermissions"
# How many permissions one call may name.
_MOST = 100
_SHOWN = 6


def permissions(asked: Asked) -> Iterator[Finding]:
    """Ask for exactly the permissions that `tpustack permissions` lists."""
    needed = permissions_of(asked.settings)
    yield _found(asked, _PROJECT.format(asked.project), needed.of_project(), "in the project")
    budget = asked.settings.budget
    if budget is not None and budget.billing_account:
        url = _ACCOUNT.format(budget.billing_account)
        yield _found(asked, url, needed.of_billing_account(), "on the billing account")


def _found(asked: Asked, url: str, needed: list[str], where: str) -> Finding:
    missing = sorted(set(needed) - set(_granted(asked, url, needed)))
    if not missing:
        return Finding("permissions", OK, f"all {len(needed)} {where}")
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return Finding(
        "permissions",
        WRONG,
        f"{len(missing)} of {len(needed)} are missing {where}: {', '.join(missing[:_SHOWN])}{more}",
        f"Get the role that `tpustack permissions --stack {asked.context.stack}` writes",
    )


def _granted(asked: Asked, url: str, needed: list[str]) -> Iterable[str]:
    for first in range(0, len(needed), _MOST):
        body = {"permissions": needed[first : first + _MOST]}
        yield from asked.google.ask(url, body).get("permissions", [])
