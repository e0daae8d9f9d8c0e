"""Whether a service account can be used by a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localcloud.core.cloud import Cloud

ACCOUNT = "service-account"


def problem(cloud: Cloud, project: str, email: str) -> str:
    """Why the account gives no tokens; empty when it does."""
    for key, record in cloud.store.items(ACCOUNT):
        if key.endswith(f"/serviceAccounts/{email}"):
            return f"the service account '{email}' is disabled" if record.get("disabled") else ""
    return f"the service account '{email}' does not exist"
