"""Short-lived tokens of a service account for a caller who may impersonate it."""

from __future__ import annotations

import re

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.tokens import Principal
from localcloud.services.iam.accounts import account_resources, find
from localcloud.services.iam.api import CREDENTIALS_API

_LONGEST = 3600.0
_SECONDS = re.compile(r"\d+(\.\d+)?s")


@CREDENTIALS_API.method(
    "projects.serviceAccounts.generateAccessToken",
    permission="iam.serviceAccounts.getAccessToken",
    resources=account_resources,
)
def generate_access_token(cloud: Cloud, call: Call) -> Json:
    """Return an access token with the scopes asked for, for at most an hour."""
    _, record = find(cloud, call)
    if record.get("disabled"):
        raise ApiError(400, f"Service account {record['email']} is disabled.")
    scopes = call.body.get("scope", [])
    if not scopes:
        raise invalid("scope must name at least one OAuth scope")
    wanted = call.body.get("lifetime", "3600s")
    lifetime = float(wanted[:-1]) if _SECONDS.fullmatch(wanted) else 0.0
    if not 0 < lifetime <= _LONGEST:
        raise invalid(f"lifetime must be more than 0s and at most {_LONGEST:.0f}s, not {wanted!r}")
    principal = Principal(f"serviceAccount:{record['email']}", frozenset(scopes))
    return {
        "accessToken": cloud.token(principal, lifetime=lifetime),
        # In whole seconds: Google's own library for Python reads no fraction here.
        "expireTime": rfc3339(int(cloud.clock.now() + lifetime)).replace(".000", ""),
    }
