"""What a preview says about Google APIs that are not enabled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pulumi
import requests

from infra.apis import apis_of
from infra.settings import StackSettings

_URL = "https://serviceusage.googleapis.com/v1/projects/{project}/services"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SECONDS = 10.0
_PAGE = 200


def report(settings: StackSettings) -> None:
    """Looks beside the program's run, and says what is disabled.

    Says nothing without credentials, or where they don't suffice: the provider then says why.
    """

    async def look() -> None:
        _tell(await asyncio.to_thread(disabled, settings.project, apis_of(settings)), settings)

    # As an output, since the program's run ends only when all of them are there.
    looked: Any = look()
    pulumi.Output.from_input(looked)


def disabled(project: str, apis: Sequence[str]) -> list[str]:
    """Those of `apis` that the project has not enabled; none where nobody may look."""
    try:
        session = _session()
        enabled = _enabled(session, project) if session else None
    except Exception:  # Whatever it is, a preview must not fail for it.
        return []
    return [] if enabled is None else [name for name in apis if name not in enabled]


def _enabled(session: requests.Session, project: str) -> set[str]:
    """Raises requests.RequestException."""
    found: set[str] = set()
    query: dict[str, Any] = {"filter": "state:ENABLED", "pageSize": _PAGE}
    while True:
        answer = session.get(_URL.format(project=project), params=query, timeout=_SECONDS)
        answer.raise_for_status()
        page = answer.json()
        found |= {service["config"]["name"] for service in page.get("services", [])}
        if not page.get("nextPageToken"):
            return found
        query["pageToken"] = page["nextPageToken"]


def _session() -> requests.Session | None:
    """The provider's credentials; never those of a machine, which take seconds to ask for."""
    if token := os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN"):
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {token}"
        return session
    given = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    if not Path(given or Path(folder) / "application_default_credentials.json").is_file():
        return None
    # Takes a while to load, which only those who have credentials should wait for.
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, _ = google.auth.default(scopes=[_SCOPE])
    return AuthorizedSession(credentials)  # type: ignore[no-untyped-call]


def _tell(names: Sequence[str], settings: StackSettings) -> None:
    if not names:
        return
    listed = ", ".join(names)
    if settings.enable_apis:
        pulumi.log.info(
            f"Disabled in {settings.project}, and enabled by `pulumi up`: {listed}. They stay "
            "enabled after `pulumi destroy`."
        )
    else:
        pulumi.log.warn(
            f"Disabled in {settings.project}, and enableApis is false: {listed}. Run "
            f"`gcloud services enable {' '.join(names)} --project {settings.project}`."
        )
