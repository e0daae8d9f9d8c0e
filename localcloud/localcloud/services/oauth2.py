"""OAuth: who a token stands for, new tokens for the developer's refresh token."""

from localcloud.core import Api, ApiError, Cloud
from localcloud.core.call import CLOUD_PLATFORM, Call, Json, Principal, Response
from localcloud.core.cloud import DEVELOPER

API = Api("oauth2", ("v2",), hosts=("www.googleapis.com",), gated=False)
_TOKEN_HOSTS = ("oauth2.googleapis.com", "www.googleapis.com", "accounts.google.com")
_EMAIL = "https://www.googleapis.com/auth/userinfo.email"
_LIFETIME = 3600
# The local refresh token is an access token for a member without any rights.
_REFRESH = "refresh-token:"
SCOPES = frozenset({CLOUD_PLATFORM, _EMAIL, "openid"})


def refresh_token(cloud: Cloud) -> str:
    """Return the refresh token of the application default credentials.

    It lives for ten years, so a developer signs in once. It is signed as access tokens are, but its
    member is no principal of any policy.
    """
    return cloud.token(Principal(_REFRESH + DEVELOPER, SCOPES), lifetime=10 * 365 * 86400)


@API.method("userinfo.get", "userinfo.v2.me.get")
def userinfo(cloud: Cloud, call: Call) -> Json:
    """Return the caller."""
    email = call.principal.email
    return {"id": email, "email": email, "verified_email": True}


@API.raw("GET", "/v1/userinfo", like="userinfo.get", hosts=("openidconnect.googleapis.com",))
def openid_userinfo(cloud: Cloud, call: Call) -> Response:
    """Return the caller, in OpenID Connect's words.

    Another host and other field names than the API of OAuth; libraries use either.
    """
    email = call.principal.email
    return _answer({"sub": email, "email": email, "email_verified": True})


@API.raw(
    "POST", "/(?:oauth2/v[34]/|o/oauth2/)?token", like="token", hosts=_TOKEN_HOSTS, upload=True
)
def token(cloud: Cloud, call: Call) -> Response:
    """Issue an access token for a refresh token; no other grant is served.

    Client id and secret are not looked at: the credentials file of the local cloud has made-up
    ones.
    """
    form = call.request.form()
    grant = form.get("grant_type", "")
    if grant != "refresh_token":
        return _refused(
            "unsupported_grant_type",
            f"the local cloud serves the grant refresh_token, not {grant!r}: its service accounts "
            "have no keys to sign with; use the metadata server or generateAccessToken",
        )
    try:
        refresh = cloud.tokens.read(form.get("refresh_token", ""), now=cloud.clock.now())
    except ApiError:
        refresh = None
    if refresh is None or not refresh.member.startswith(_REFRESH):
        return _refused("invalid_grant", "Bad Request")
    principal = Principal(refresh.member.removeprefix(_REFRESH), refresh.scopes)
    issued = {"access_token": cloud.token(principal, lifetime=_LIFETIME), "token_type": "Bearer"}
    scope = " ".join(sorted(principal.scopes))
    # A second less than it lives, as Google counts.
    return _answer(issued | {"expires_in": _LIFETIME - 1, "scope": scope})


def _refused(error: str, description: str) -> Response:
    return _answer({"error": error, "error_description": description}, 400)


def _answer(body: Json, status: int = 200) -> Response:
    response = Response.of_json(body, status)
    response.headers["Cache-Control"] = "no-store"
    return response
