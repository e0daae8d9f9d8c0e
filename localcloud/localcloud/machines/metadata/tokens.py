"""Access tokens for a machine's service account."""

from __future__ import annotations

import math

from localcloud.core import accounts
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.machines import MachineSpec
from localcloud.core.tokens import CLOUD_PLATFORM, Principal

_LIFETIME = 3599.0


def access_token(cloud: Cloud, spec: MachineSpec, wanted: list[str]) -> dict[str, object]:
    """Return the token endpoint's answer.

    Args:
        cloud: the cloud.
        spec: the machine that asks.
        wanted: scopes to narrow the token to; all of the machine's when empty.

    Raises:
        ApiError: 404 when the account is gone or disabled, 400 when the machine has none of the
            wanted scopes.
    """
    email = spec.service_account
    if email is None:
        raise ApiError(404, "the machine has no service account")
    problem = accounts.problem(cloud, email)
    if problem:
        raise ApiError(404, problem)
    scopes = _narrow(spec.scopes, wanted)
    principal = Principal(f"serviceAccount:{email}", scopes)
    token = cloud.token(principal, lifetime=_LIFETIME, machine=spec.key)
    return {"access_token": token, "expires_in": math.floor(_LIFETIME), "token_type": "Bearer"}


def _narrow(granted: tuple[str, ...], wanted: list[str]) -> frozenset[str]:
    if not wanted:
        return frozenset(granted)
    if CLOUD_PLATFORM in granted:
        return frozenset(wanted)
    scopes = frozenset(granted) & frozenset(wanted)
    if not scopes:
        raise ApiError(
            400,
            f"none of the scopes {', '.join(wanted)} is among the machine's: {', '.join(granted)}",
        )
    return scopes
