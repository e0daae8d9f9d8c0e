"""The machine that the agent runs on: its metadata, its account, its power switch."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from .google import TPU, Json, parse
from .jobs.attempt import any_running

_METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/"
_CALL_SECONDS = 60
_JOBS = Path(sys.argv[0]).parent / "jobs"


class Machine:
    """The machine that this runs on."""

    def __init__(self) -> None:
        self._etag = ""

    def attribute(self, name: str) -> str:
        """Return a metadata value."""
        return self._metadata(f"attributes/{name}")[0]

    def entry(self, path: str) -> str:
        """Return an entry of the metadata server."""
        return self._metadata(path)[0]

    def limits(self, seconds: int) -> Json:
        """Return the limits: at once at first, then on a change or after so many seconds."""
        query = {"wait_for_change": "true", "timeout_sec": str(seconds)}
        query["last_etag"] = self._etag or "0"
        text, self._etag = self._metadata(f"attributes/limits?{urllib.parse.urlencode(query)}")
        return dict(json.loads(text))

    def call(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        """Call Google as the machine's account."""
        token = json.loads(self._metadata("service-accounts/default/token")[0])["access_token"]
        content = "application/json" if url.startswith(TPU) else "text/plain"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content}
        data = None if body is None else body.encode()
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_CALL_SECONDS) as response:
                return response.status, parse(response.read())
        except urllib.error.HTTPError as error:
            return error.code, parse(error.read())

    @staticmethod
    def training() -> bool:
        """Return whether the trainer's unit or a job runs."""
        command = ["systemctl", "is-active", "--quiet", "training"]
        return any_running(_JOBS) or subprocess.run(command, check=False).returncode == 0

    @staticmethod
    def turn_off() -> None:
        """Turn the machine off."""
        subprocess.run(["systemctl", "poweroff"], check=True)

    def _metadata(self, path: str) -> tuple[str, str]:
        request = urllib.request.Request(_METADATA + path, headers={"Metadata-Flavor": "Google"})
        with urllib.request.urlopen(request, timeout=2 * _CALL_SECONDS) as response:
            return response.read().decode(), response.headers.get("ETag", "")
