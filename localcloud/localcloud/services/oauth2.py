"""OAuth: who a token stands for, new tokens for the developer's refresh token.

Discovery documents are served here, too: TPU_API_DISCOVERY_URL lets TensorFlow fetch them.
"""

import re

from localcloud.core.call import CLOUD_PLATFORM, Call, Json, Principal, Response
from localcloud.core.cloud import DEVELOPER, Cloud
from localcloud.core.discovery import source
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api

API = Api("oauth2", ("v2",), hosts=("www.googleapis.com",), gated=False)
_TOKEN_HOSTS = ("oauth2.googleapis.com", "www.googleapis.com", "accounts.google.com")
_EMAIL = "https://www.googleapis.com/auth/userinfo.email"
_LIFETIME = 3600
_CLIENT = "local.apps.googleusercontent.com"
# The local refresh token is an access token for a member without any rights.
_REFRESH = "refresh-token:"
SCOPES = frozenset({CLOUD_PLATFORM, _EMAIL, "openid"})
DISCOVERY = Api("discovery", ("v1",), hosts=("www.googleapis.com",), gated=False)
_HOSTS = tuple(
    f"{api}.googleapis.com"
    for api in ("cloudresourcemanager", "compute", "iam", "serviceusage", "storage", "tpu")
)


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


@API.method("tokeninfo")
def tokeninfo(cloud: Cloud, call: Call) -> Json:
    """Return the claims of the token in the query.

    The number of seconds that it still lives is what clients renew by.
    """
    claims = cloud.tokens.claims(call.arg("access_token"), now=cloud.clock.now())
    email = claims["m"].partition(":")[2]
    about = {"issued_to": _CLIENT, "audience": _CLIENT, "user_id": email, "email": email}
    scope, left = " ".join(claims["s"]), int(claims["e"] - cloud.clock.now())
    return about | {"verified_email": True, "scope": scope, "expires_in": left}


@API.raw("GET", "/(?:oauth2/v3/)?tokeninfo", like="tokeninfo", hosts=_TOKEN_HOSTS, upload=True)
@API.raw("POST", "/(?:oauth2/v3/)?tokeninfo", like="tokeninfo", hosts=_TOKEN_HOSTS, upload=True)
def token_info(cloud: Cloud, call: Call) -> Response:
    """Return the claims of the token in the query or form, as the newer endpoint does."""
    token = call.arg("access_token") or call.request.form().get("access_token", "")
    try:
        claims = cloud.tokens.claims(token, now=cloud.clock.now())
    except ApiError:
        return _refused("invalid_token", "Invalid Value")
    email = claims["m"].partition(":")[2]
    ends = {
        "exp": str(int(claims["e"])),
        "expires_in": str(int(claims["e"] - cloud.clock.now())),
    }
    about = {"azp": _CLIENT, "aud": _CLIENT, "sub": email, "scope": " ".join(claims["s"])}
    # Text throughout, also where the older endpoint has numbers and booleans.
    return _answer({**about, **ends, "email": email, "email_verified": "true"})


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


def _document(api: str, version: str) -> Response:
    if not re.fullmatch(r"\w+", api) or not re.fullmatch(r"\w+", version):
        raise invalid(f"'{api}' '{version}' is no API's name and version")
    path = source(api, version)
    if not path.exists():
        raise ApiError(404, f"Discovery document not found for API service: {api}, {version}")
    return Response(200, path.read_bytes(), {"Content-Type": "application/json; charset=UTF-8"})


@DISCOVERY.method("apis.getRest")
def get_rest(cloud: Cloud, call: Call) -> Response:
    """Answer an API's document from the old central address.

    Client libraries for Python still build their services from it.
    """
    return _document(call.params["api"], call.params["version"])


@DISCOVERY.raw("GET", r"/\$discovery/rest", like="apis.getRest", hosts=_HOSTS)
def get_own(cloud: Cloud, call: Call) -> Response:
    """Answer an API's document from its own host."""
    return _document(call.request.host.partition(".")[0], call.arg("version"))
