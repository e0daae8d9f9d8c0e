"""Read project, zone and access token from a Compute Engine VM's metadata server."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import requests

_TIMEOUT_SECONDS = 5.0
_CHANGE_SECONDS = 60


@dataclass(frozen=True)
class MetadataServer:
    """Reads `http://HOST/computeMetadata/v1/…`, with HOST found as Google's clients do."""

    host: str = "metadata.google.internal"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "MetadataServer":
        """Use GCE_METADATA_HOST (or its older name GCE_METADATA_ROOT) if it is set."""
        host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_ROOT")
        return cls(host) if host else cls()

    def get(self, path: str) -> str | None:
        """Return the text at `path`; None if there is no metadata server or no such key."""
        url = f"http://{self.host}/computeMetadata/v1/{path}"
        try:
            answer = requests.get(
                url, headers={"Metadata-Flavor": "Google"}, timeout=_TIMEOUT_SECONDS
            )
        except requests.RequestException:
            return None
        return answer.text.strip() if answer.ok else None

    def wait_for_change(self, path: str, etag: str) -> tuple[str, str] | None:
        """Return the JSON below `path` and its tag as soon as that is no longer `etag`.

        Returns it as it is after a minute; None if there is no answer.
        """
        url = f"http://{self.host}/computeMetadata/v1/{path}"
        query: dict[str, str | int] = {"recursive": "true", "alt": "json", "last_etag": etag}
        query |= {"wait_for_change": "true", "timeout_sec": _CHANGE_SECONDS}
        headers, patience = {"Metadata-Flavor": "Google"}, _CHANGE_SECONDS + _TIMEOUT_SECONDS
        try:
            answer = requests.get(url, params=query, headers=headers, timeout=patience)
        except requests.RequestException:
            return None
        return (answer.text, answer.headers.get("ETag", "0")) if answer.ok else None

    def project(self) -> str | None:
        """Return the VM's project."""
        return self.get("project/project-id")

    def zone(self) -> str | None:
        """Return the VM's zone, without the `projects/NUMBER/zones/` before it."""
        zone = self.get("instance/zone")
        return zone.rpartition("/")[2] if zone else None

    def token(self) -> str | None:
        """Return a JSON object with access_token, expires_in (seconds) and token_type."""
        return self.get("instance/service-accounts/default/token")
