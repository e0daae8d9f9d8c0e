"""OAuth access tokens, signed so that they need no table and outlive a restart."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localcloud.core.errors import ApiError, error_info

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
_SCOPES = "https://www.googleapis.com/auth/"
# A scope that is no URL of that form.
_MAIL = "https://mail.google.com/"
_PREFIX = "ya29.local-"
_EXPECTED = (
    "Expected OAuth 2 access token, login cookie or other valid authentication credential. See "
    "https://developers.google.com/identity/sign-in/web/devconsole-project."
)
TOKENS = "tokens"
"""The setting that says, by machine, since when its tokens must be; older ones have expired."""
INVALID = f"Request had invalid authentication credentials. {_EXPECTED}"
MISSING = f"Request is missing required authentication credential. {_EXPECTED}"


def is_scope(text: str) -> bool:
    """Return whether `text` has the form of Google's OAuth scopes."""
    return text.startswith(_SCOPES) or text == _MAIL


@dataclass(frozen=True)
class Principal:
    """Who calls: an IAM member (`user:…`, `serviceAccount:…`) and its token's scopes."""

    member: str
    scopes: frozenset[str] = field(default_factory=lambda: frozenset({CLOUD_PLATFORM}))
    sets: frozenset[str] = frozenset()
    """The sets (`principalSet:…`) by which a policy may mean a federated identity, too."""
    own_client: bool = False
    """A person's token came by an OAuth client of their own, whose project calls count against."""

    @property
    def email(self) -> str:
        """The member's e-mail address."""
        return self.member.partition(":")[2]


ANONYMOUS = Principal("allUsers", frozenset())


class Tokens:
    """Issues and reads access tokens.

    Args:
        secret: the signing key, kept with the emulator's state.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def issue(
        self, principal: Principal, *, issued: float, expires: float, machine: str = ""
    ) -> str:
        """Return a bearer token.

        Args:
            principal: whose it is.
            issued: seconds since the epoch.
            expires: until when it is valid, in the same way.
            machine: the machine whose metadata server gave it out; empty for none.
        """
        claims = {"m": principal.member, "s": sorted(principal.scopes), "i": issued, "e": expires}
        if machine:
            claims["h"] = machine
        if principal.sets:
            claims["g"] = sorted(principal.sets)
        if principal.own_client:
            claims["c"] = True
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()
        return f"{_PREFIX}{payload}.{self._sign(payload)}"

    def read(
        self, token: str, *, now: float, since: Mapping[str, float] | None = None
    ) -> Principal:
        """Return the principal of `token`; a machine's from before `since` has expired.

        Raises:
            ApiError: 401 when the token is not the emulator's, was altered or has expired.
        """
        claims = self.claims(token, now=now)
        if claims.get("i", 0.0) < (since or {}).get(claims.get("h", ""), 0.0):
            raise unauthenticated(INVALID, "ACCESS_TOKEN_EXPIRED")
        sets, own = frozenset(claims.get("g", ())), bool(claims.get("c"))
        return Principal(claims["m"], frozenset(claims["s"]), sets, own)

    def claims(self, token: str, *, now: float) -> dict[str, Any]:
        """Return what a token says: `m` member, `h` machine, `i` and `e` begin and end, …"""
        payload, _, signature = token.removeprefix(_PREFIX).rpartition(".")
        if not token.startswith(_PREFIX) or not hmac.compare_digest(signature, self._sign(payload)):
            raise unauthenticated(INVALID, "ACCESS_TOKEN_TYPE_UNSUPPORTED")
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload))
        if claims["e"] <= now:
            raise unauthenticated(INVALID, "ACCESS_TOKEN_EXPIRED")
        return claims

    def _sign(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode(), hashlib.sha256).hexdigest()[:40]


def unauthenticated(message: str, reason: str = "CREDENTIALS_MISSING") -> ApiError:
    """Return a 401 with a reason of google.api.ErrorReason."""
    return ApiError(401, message, details=[error_info(reason)])
