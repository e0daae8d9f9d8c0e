"""Whether a service account can be used by a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localcloud.services.policies import ACCOUNT

if TYPE_CHECKING:
    from localcloud.core.cloud import Cloud

__all__ = ["ACCOUNT", "problem"]


def problem(cloud: Cloud, project: str, email: str) -> str:
    """Why the account gives no tokens to machines of `project`; empty when it does.

    Accounts of other projects are refused, as iam.disableCrossProjectServiceAccountUsage does.
    """
    record = cloud.store.get(ACCOUNT, f"projects/{project}/serviceAccounts/{email}")
    if record is None:
        return f"the service account '{email}' does not exist in project '{project}'"
    return f"the service account '{email}' is disabled" if record.get("disabled") else ""
