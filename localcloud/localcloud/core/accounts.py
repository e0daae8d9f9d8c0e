"""Looks service accounts up by e-mail address and checks who may use them."""

from __future__ import annotations

import re

from localcloud.core import access, projects
from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.store import Record

ACCOUNT = "service-account"
"""The store's kind of accounts, by their full name `projects/p/serviceAccounts/EMAIL`."""
_OWN = ".iam.gserviceaccount.com"
# The accounts that Google makes carry the project's number: Compute Engine's default account, and
# those as which its services act.
_GOOGLES = re.compile(
    r"(\d+)-compute@developer\.gserviceaccount\.com|service-(\d+)@[-a-z0-9]+\.iam\.gserviceaccount\.com"
)


def find(cloud: Cloud, email: str) -> tuple[str, Record] | None:
    """Return the full name and record of an account, or None."""
    googles = _GOOGLES.fullmatch(email)
    if googles:
        project = projects.identifier(cloud, googles.group(1) or googles.group(2))
    else:
        project = email.partition("@")[2].removesuffix(_OWN)
    key = f"projects/{project}/serviceAccounts/{email}"
    record = cloud.store.get(ACCOUNT, key)
    return (key, record) if record is not None and is_visible(cloud, record) else None


def is_visible(cloud: Cloud, record: Record) -> bool:
    """Return whether Google finds the account, which it does only a while after its creation."""
    return bool(record.get("_visible", 0.0) <= cloud.clock.now())


def is_agent(email: str) -> bool:
    """Return whether a service of Google's acts as the account; those are shown in no list."""
    return email.startswith("service-") and _GOOGLES.fullmatch(email) is not None


def may_act_as(cloud: Cloud, call: Call, email: str) -> bool:
    """Return whether the caller may attach the account to a machine of the project in the path."""
    project = f"projects/{call.project}"
    resources = [f"{project}/serviceAccounts/{email}", project]
    return access.allowed(cloud, call.principal, "iam.serviceAccounts.actAs", resources)


def problem(cloud: Cloud, email: str) -> str:
    """Return why the account can't be used; empty when it can."""
    found = find(cloud, email)
    if found is None:
        return f"the service account '{email}' does not exist"
    return f"the service account '{email}' is disabled" if found[1].get("disabled") else ""
