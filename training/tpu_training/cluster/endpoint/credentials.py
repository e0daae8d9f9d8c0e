"""Access tokens for Google's APIs."""

import json
import os
import re
import time
from collections.abc import Callable, Mapping

from tpu_training.cluster.endpoint.metadata import MetadataServer
from tpu_training.errors import AccessError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_CURE = (
    "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS to a key "
    "file, or run on a VM with a service account and the cloud-platform scope"
)
# A token is replaced this long before it expires, so that it can't expire in transit.
_MARGIN_SECONDS = 60.0
# A match of the text itself: parsers of URLs differ about what the host of an odd one is.
_GOOGLES = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/")

TokenSource = Callable[[], str]


def authorization(url: str, tokens: TokenSource) -> dict[str, str]:
    """Return the header that authorizes a request; raise AccessError unless it goes to Google."""
    if not _GOOGLES.match(url):
        raise AccessError(f"{url} is not https://*.googleapis.com/, which alone gets the token")
    return {"Authorization": f"Bearer {tokens()}"}


def application_default_tokens() -> TokenSource:
    """Return a function that gives a valid access token of Application Default Credentials.

    It uses google-auth if that is installed, else the VM's metadata server, and raises AccessError
    when there are no credentials.
    """
    try:
        return _google_auth_tokens()
    except ImportError:
        return MetadataTokens(MetadataServer.from_environment())


def bucket_tokens(environ: Mapping[str, str] = os.environ) -> TokenSource:
    """Return a function that gives the token with which TensorFlow itself reaches buckets.

    It takes this variable first (tsl/platform/cloud/google_auth_provider.cc).
    """
    token = environ.get("GOOGLE_AUTH_TOKEN_FOR_TESTING")
    return (lambda: token) if token else application_default_tokens()


class MetadataTokens:
    """Tokens of the VM's service account."""

    def __init__(self, server: MetadataServer) -> None:
        """Ask `server` for a token whenever the last one is about to expire."""
        self._server = server
        self._token = ""
        self._expires = 0.0

    def __call__(self) -> str:
        """Return a valid token."""
        if time.monotonic() > self._expires - _MARGIN_SECONDS:
            answer = self._server.token()
            if answer is None:
                raise AccessError(f"no Google credentials found: {_CURE}")
            content = json.loads(answer)
            self._token = content["access_token"]
            self._expires = time.monotonic() + float(content["expires_in"])
        return self._token


def _google_auth_tokens() -> TokenSource:
    from google.auth import default, exceptions
    from google.auth.transport.requests import Request

    try:
        credentials, _ = default(scopes=[SCOPE])
    except exceptions.GoogleAuthError as error:
        raise AccessError(f"no Google credentials found ({error}): {_CURE}") from error

    def token() -> str:
        try:
            if not credentials.valid:
                credentials.refresh(Request())  # type: ignore[no-untyped-call]
        except exceptions.GoogleAuthError as error:
            raise AccessError(f"Google credentials are refused ({error}): {_CURE}") from error
        return str(credentials.token)

    return token
