"""The service account of an instance: it must exist, and the caller may act as it."""

from __future__ import annotations

from localcloud.core import access
from localcloud.core.call import CLOUD_PLATFORM, Call, Json, is_scope
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services.compute.projects import default_service_account


def accepted(cloud: Cloud, call: Call, sent: list[Json]) -> list[Json]:
    """Return the service accounts that an instance gets: none or one.

    Raises:
        ApiError: 400 for more than one, for wrong scopes, and when the account doesn't exist or
            the caller may not act as it.
    """
    if not sent or not sent[0].get("email"):
        return []
    if len(sent) > 1:
        raise invalid("Invalid value for field 'resource.serviceAccounts': at most one is allowed.")
    email = sent[0]["email"]
    if email == "default":
        email = default_service_account(call.project)
    _require_usable(cloud, call, email)
    scopes = sent[0].get("scopes", [])
    if not scopes:
        raise invalid(
            "Invalid value for field 'resource.serviceAccounts[0].scopes': ''. At least one scope "
            "is needed."
        )
    for scope in scopes:
        if not is_scope(scope):
            raise invalid(
                f"Invalid value for field 'resource.serviceAccounts[0].scopes[]': '{scope}'. "
                f"Scopes are URLs such as {CLOUD_PLATFORM}."
            )
    return [{"email": email, "scopes": list(scopes)}]


def _require_usable(cloud: Cloud, call: Call, email: str) -> None:
    may_act = access.may_act_as(cloud, call, email)
    if access.account_problem(cloud, email) or not may_act:
        raise ApiError(
            400,
            f"The user does not have access to service account '{email}'. User: "
            f"'{call.principal.email}'. Ask a project owner to grant you the "
            "iam.serviceAccountUser role on the service account",
            reason="SERVICE_ACCOUNT_ACCESS_DENIED",
        )
