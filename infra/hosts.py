"""The hosts that get Google's credentials: those of Google's APIs alone."""

from __future__ import annotations

import re
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

# A match of the text itself: parsers of URLs differ about what the host of an odd one is.
_GOOGLES = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/")


class GoogleOnly(HTTPAdapter):
    """Sends requests to Google's APIs only, redirected ones too."""

    def send(self, request: requests.PreparedRequest, *how: Any, **more: Any) -> requests.Response:
        """Send a request. Raises InvalidURL for any other host, before anything is sent."""
        if not _GOOGLES.match(request.url or ""):
            raise requests.exceptions.InvalidURL(
                f"{request.url} is not https://*.googleapis.com/, which alone gets Google's "
                "credentials"
            )
        return super().send(request, *how, **more)


def keep_to_google(session: requests.Session, retries: Retry | int = 0) -> None:
    """Let a session with credentials send them to Google's APIs only."""
    for scheme in ("https://", "http://"):
        session.mount(scheme, GoogleOnly(max_retries=retries))
