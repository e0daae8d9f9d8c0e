"""The credentials of Google's provider, for the calls that this project makes itself.

What counts before what is the provider's own order: the stack's configuration before the
environment, a token before a key, either before the application default credentials; then
impersonation. Source: providerConfigure and Config.GetCredentials of google-beta 6.39.0
(provider/provider.go, transport/config.go). Like the provider, it does not send the quota project
of the application default credentials, which need not have the stack's APIs; where an API asks for
one, calls count for the project that they are about.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tpu_core.google import Answer, Body, Client, is_google

# These take a while to load, for which only those who have credentials should wait.
if TYPE_CHECKING:
    import google.auth.credentials
    import requests

    _S = TypeVar("_S", bound=requests.Session)

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_TOKENS = ("GOOGLE_OAUTH_ACCESS_TOKEN",)
_KEYS = ("GOOGLE_CREDENTIALS", "GOOGLE_CLOUD_KEYFILE_JSON", "GCLOUD_KEYFILE_JSON")
_ACCOUNTS = ("GOOGLE_IMPERSONATE_SERVICE_ACCOUNT",)
_BILLING_PROJECTS = ("GOOGLE_BILLING_PROJECT",)
_OVERRIDES = ("USER_PROJECT_OVERRIDE",)
_ADC = "application_default_credentials.json"
_TRUE = ("1", "t", "true")
# Of one call; in a preview, of one that must have failed before the preview stops waiting for it.
_SECONDS, _USERS_SECONDS = 60.0, 10.0
# Of Google's 403 with which golang/oauth2#702 (2024-02) and others end.
_ASKS_FOR_ONE = "requires a quota project"
_PROJECT = re.compile(r"/projects/([^/]+)/")
QUOTA_PROJECT = "X-Goog-User-Project"
"""Header with the project that a call counts against, where its path does not decide."""
SETTINGS = (
    *("gcp:accessToken", "gcp:credentials", "gcp:impersonateServiceAccount"),
    *("gcp:impersonateServiceAccountDelegates", "gcp:userProjectOverride", "gcp:billingProject"),
)
"""The provider's settings that decide."""


@dataclass(frozen=True)
class Given:
    """What the stack's configuration and the environment say of credentials.

    Attributes:
        token: an access token, or the path of a file with one.
        key: JSON of any kind that Google's libraries take, or the path of a file with it.
        account: the service account to act as.
        delegates: the accounts through which that is done.
        quota_project: the project that calls count against; empty for the one that they are about.
    """

    token: str = ""
    key: str = ""
    account: str = ""
    delegates: tuple[str, ...] = ()
    quota_project: str = ""

    @property
    def is_users(self) -> bool:
        """Whether credentials were given, and not just the machine's own."""
        if self.token or self.key:
            return True
        named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
        return Path(named or Path(folder) / _ADC).is_file()


def of_program() -> Given:
    """Return what is said to the stack whose program this is; on any thread."""
    # The engine's own variable, which the SDK reads, too.
    return given(json.loads(os.environ.get("PULUMI_CONFIG") or "{}"))


def given(configured: Mapping[str, str]) -> Given:
    """Return what is said; `configured` is a stack's configuration, empty outside the engine."""

    def config(name: str) -> str:
        return str(configured.get(f"gcp:{name}") or "")

    token, key = config("accessToken"), config("credentials")
    if not token and not key:
        token, key = _first(_TOKENS), _first(_KEYS)
    override = config("userProjectOverride") or _first(_OVERRIDES)
    billed = config("billingProject") or _first(_BILLING_PROJECTS)
    return Given(
        token,
        key,
        config("impersonateServiceAccount") or _first(_ACCOUNTS),
        tuple(json.loads(config("impersonateServiceAccountDelegates") or "[]")),
        billed if override.lower() in _TRUE else "",
    )


def session(given: Given) -> requests.Session:
    """Return a client with these credentials, or the default ones. Raises GoogleAuthError."""
    made = _plain_session(given) if given.token and not given.account else _session(given)
    keep_to_google(made)
    made.hooks["response"].append(_counted)
    if given.quota_project:
        made.headers[QUOTA_PROJECT] = given.quota_project
    return made


def prepared(session: _S) -> _S:
    """Return a session that trusts what people name, and whose token nothing replaces.

    requests has certificates where Python itself has none (python.org's on macOS), since it brings
    Mozilla's. REQUESTS_CA_BUNDLE, which it reads itself, counts before SSL_CERT_FILE, which the
    provider reads.
    """
    session.verify = os.environ.get("SSL_CERT_FILE") or True
    # Without this, an entry of ~/.netrc replaces the token.
    session.auth = lambda request: request
    return session


def client(given: Given, seconds: float = _SECONDS) -> Client:
    """Return a client with these credentials. Raises as `session` does."""
    return client_of(session(given), seconds)


def client_of(session: requests.Session, seconds: float = _SECONDS) -> Client:
    """Return a client that sends by a session, with its credentials and connections.

    It is not tpu_core's own transport, since people's machines need what requests brings along:
    python.org's Python on macOS has no certificates, and companies name theirs for requests.
    """
    import requests

    def send(method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        try:
            found = session.request(method, url, headers=headers, data=body, timeout=seconds)
        except requests.Timeout as error:
            raise TimeoutError(str(error)) from None
        except requests.ConnectionError as error:
            raise ConnectionError(str(error)) from None
        return found.status_code, found.headers, found.content

    return Client(send)


def users_client() -> Client | None:
    """Return a client as the provider is; None if the machine had to be asked, for seconds."""
    found = of_program()
    return client(found, _USERS_SECONDS) if found.is_users else None


def keep_to_google(session: requests.Session) -> None:
    """Let a session send requests, and so its credentials, to Google's APIs only.

    It raises InvalidURL for any other host, redirected ones too, before anything is sent.
    """
    import requests
    from requests.adapters import HTTPAdapter

    class GoogleOnly(HTTPAdapter):
        def send(
            self, request: requests.PreparedRequest, *how: Any, **more: Any
        ) -> requests.Response:
            if not is_google(request.url or ""):
                raise requests.exceptions.InvalidURL(
                    f"{request.url} is not https://*.googleapis.com/, the only host that gets "
                    "Google's credentials"
                )
            return super().send(request, *how, **more)

    for scheme in ("https://", "http://"):
        session.mount(scheme, GoogleOnly())


def _counted(answer: requests.Response, **how: Any) -> requests.Response:
    """Have a call count for the project in its address, where Google asks a person for one.

    Client-based APIs do (docs.cloud.google.com/docs/quotas/quota-project). To name it in each call
    would take `serviceusage.services.use` of people who get along without.
    """
    project = _PROJECT.search(answer.url)
    if answer.status_code != 403 or not project or _ASKS_FOR_ONE not in answer.text:
        return answer
    again = answer.request.copy()
    again.headers[QUOTA_PROJECT] = project[1]
    counted: requests.Response = answer.connection.send(again, **how)
    return counted


def _plain_session(given: Given) -> requests.Session:
    import requests

    made = prepared(requests.Session())
    made.headers["Authorization"] = f"Bearer {_content(given.token)}"
    return made


def account(given: Given) -> google.auth.credentials.Credentials:
    """Return these credentials. Raises GoogleAuthError if there are none or they are of no use."""
    from google.auth import impersonated_credentials
    from google.auth.credentials import CredentialsWithQuotaProject

    found = _credentials(given)
    if isinstance(found, CredentialsWithQuotaProject):
        found = found.with_quota_project(None)  # type: ignore[no-untyped-call]
    if not given.account:
        return found
    return impersonated_credentials.Credentials(  # type: ignore[no-untyped-call]
        found, given.account, list(_SCOPES), delegates=list(given.delegates)
    )


def _session(given: Given) -> requests.Session:
    import requests
    from google.auth.transport.requests import AuthorizedSession, Request

    # By default, a session of its own asks for tokens.
    asking: Any = Request(prepared(requests.Session()))
    return prepared(AuthorizedSession(account(given), auth_request=asking))  # type: ignore[no-untyped-call]


def _credentials(given: Given) -> google.auth.credentials.Credentials:
    import google.auth
    import google.oauth2.credentials
    from google.auth.exceptions import DefaultCredentialsError

    library: Any = google.auth  # It has no types.
    found: google.auth.credentials.Credentials
    if given.token:
        token = _content(given.token)
        return google.oauth2.credentials.Credentials(token)  # type: ignore[no-untyped-call]
    if not given.key:
        found, _ = library.default(scopes=_SCOPES)
        return found
    try:
        content = json.loads(_content(given.key))
    except ValueError:
        raise DefaultCredentialsError(  # type: ignore[no-untyped-call]
            f"gcp:credentials (or {', '.join(_KEYS)}) is neither JSON nor the path of a JSON file"
        ) from None
    found, _ = library.load_credentials_from_dict(content, scopes=_SCOPES)
    return found


def _content(text_or_path: str) -> str:
    """Return a text, or what the file of this name holds, as the provider does it."""
    try:
        return Path(text_or_path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError, RuntimeError):
        return text_or_path


def _first(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")
