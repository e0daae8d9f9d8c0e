"""Google's APIs as a training reaches them: its credentials, the metadata server, its bucket.

All calls go through `tpu_core.google`, which loads neither TensorFlow nor any other library.
"""

import math
import os
import time
from collections.abc import Mapping
from datetime import timezone
from urllib.error import HTTPError

from tpu_core.bucket import Bucket
from tpu_core.google import MachineToken, MetadataServer, Tokens, Transport
from tpu_training.errors import AccessError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_METADATA_SECONDS = 5.0
# A lease is lost within a minute, so a dead connection must not hold a renewal up for longer.
_TIMEOUT_SECONDS = 10.0
_CURE = (
    "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS to a key "
    "file, or run on a VM with a service account and the cloud-platform scope"
)


def metadata_server(environ: Mapping[str, str] = os.environ) -> MetadataServer:
    """Return the metadata server, found as Google's clients do."""
    host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_ROOT")
    return MetadataServer(host) if host else MetadataServer()


def metadata(path: str) -> str | None:
    """Return an entry of the metadata server; None without such an entry or such a server."""
    try:
        return metadata_server().read(path, _METADATA_SECONDS)[0].strip()
    except OSError:
        return None


def transport(tokens: Tokens | None = None) -> Transport:
    """Return what sends requests once, by default with Application Default Credentials."""
    # Where a company's proxy signs all answers, these name its authority to google-auth and to
    # TensorFlow's gs:// client; the standard library knows SSL_CERT_FILE alone.
    names = (os.environ.get(name, "") for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    authorities = next((path for path in names if os.path.exists(path)), "")
    return Transport(tokens or default_tokens(), 0.0, _TIMEOUT_SECONDS, authorities)


def bucket(name: str, environ: Mapping[str, str] = os.environ) -> Bucket:
    """Return a bucket, with the token with which TensorFlow itself reaches it.

    TensorFlow takes this variable first (tsl/platform/cloud/google_auth_provider.cc).
    """
    token = environ.get("GOOGLE_AUTH_TOKEN_FOR_TESTING")
    return Bucket(name, transport(Tokens(lambda: (token, math.inf)) if token else None))


def default_tokens() -> Tokens:
    """Return tokens of Application Default Credentials, by google-auth if that is installed.

    Otherwise those of the VM's service account. They raise AccessError without credentials.
    """
    try:
        return _google_auth_tokens()
    except ImportError:
        return MachineToken(_entry)


def _entry(path: str) -> str:
    try:
        return metadata_server().read(f"instance/{path}", _METADATA_SECONDS)[0]
    except HTTPError as error:
        raise AccessError(f"no Google credentials found ({error}): {_CURE}") from error
    except OSError as error:
        raise AccessError(f"no Google credentials found: {_CURE}") from error


def _google_auth_tokens() -> Tokens:
    from google.auth import default, exceptions
    from google.auth.transport.requests import Request

    try:
        credentials, _ = default(scopes=[SCOPE])
    except exceptions.GoogleAuthError as error:
        raise AccessError(f"no Google credentials found ({error}): {_CURE}") from error

    def fetch() -> tuple[str, float]:
        try:
            credentials.refresh(Request())  # type: ignore[no-untyped-call]
        except exceptions.GoogleAuthError as error:
            raise AccessError(f"Google credentials are refused ({error}): {_CURE}") from error
        if credentials.expiry is None:
            return str(credentials.token), math.inf
        # google-auth gives a UTC time without a zone.
        expiry = credentials.expiry.replace(tzinfo=timezone.utc)
        return str(credentials.token), expiry.timestamp() - time.time()

    return Tokens(fetch)
