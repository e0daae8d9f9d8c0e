"""OAuth: who a token stands for, and new tokens for the developer's refresh token."""

from __future__ import annotations

from urllib.parse import parse_qs

from localcloud.core.call import Call, Json
from localcloud.core.cloud import DEVELOPER, Cloud
from localcloud.core.errors import ApiError
from localcloud.core.registry import Api
from localcloud.core.tokens import ANONYMOUS, CLOUD_PLATFORM, Principal

API = Api("oauth2", ("v2",), hosts=("www.googleapis.com",), gated=False)
_EMAIL = "https://www.googleapis.com/auth/userinfo.email"
_LIFETIME = 3600
SCOPES = frozenset({CLOUD_PLATFORM, _EMAIL, "openid"})


def refresh_token(cloud: Cloud) -> str:
    """What stands as the refresh token in the application default credentials."""
    return cloud.token(Principal(DEVELOPER, SCOPES), lifetime=10 * 365 * 86400)


def _caller(call: Call) -> Principal:
    if call.principal is ANONYMOUS:
        raise ApiError(401, "Request is missing required authentication credential.")
    return call.principal


@API.raw("GET", "/v1/userinfo", like="userinfo.get", hosts=("openidconnect.googleapis.com",))
@API.method("userinfo.get", "userinfo.v2.me.get")
def userinfo(cloud: Cloud, call: Call) -> Json:
    """The caller."""
    email = _caller(call).email
    return {"id": email, "email": email, "verified_email": True}


@API.raw("GET", "/tokeninfo", like="tokeninfo", hosts=("oauth2.googleapis.com",))
@API.raw("POST", "/tokeninfo", like="tokeninfo", hosts=("oauth2.googleapis.com",))
@API.method("tokeninfo")
def tokeninfo(cloud: Cloud, call: Call) -> Json:
    """What the token in the query says."""
    principal = cloud.tokens.read(call.arg("access_token"), now=cloud.clock.now())
    return {"email": principal.email, "scope": " ".join(sorted(principal.scopes))}


@API.raw("POST", "/token", like="token", hosts=("oauth2.googleapis.com",), upload=True)
def token(cloud: Cloud, call: Call) -> Json:
    """A new access token for a refresh token; no other grant is served."""
    form = {name: values[-1] for name, values in parse_qs(call.request.read().decode()).items()}
    if form.get("grant_type") != "refresh_token":
        raise ApiError(
            400,
            f"unsupported_grant_type: the local cloud serves refresh_token, not "
            f"{form.get('grant_type')}; it has no keys to sign with",
        )
    principal = cloud.tokens.read(form.get("refresh_token", ""), now=cloud.clock.now())
    return {
        "access_token": cloud.token(principal, lifetime=_LIFETIME),
        "expires_in": _LIFETIME,
        "scope": " ".join(sorted(principal.scopes)),
        "token_type": "Bearer",
    }
