"""The machine that the agent runs on: its metadata, its account, its power switch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tpu_core.google import Client, Json, MachineToken, Transport

_METADATA = "http://metadata.google.internal/computeMetadata/v1/"
_METADATA_SECONDS = 120
_NOT_FOUND = 404
BASE = Path(os.environ.get("TPU_STACK_BASE") or Path(sys.argv[0]).parent)
"""Where the agent keeps what outlives its process; its own file lies in memory."""


class Machine:
    """The machine that this runs on."""

    def __init__(self) -> None:
        self._etag = ""
        self._opener = urllib.request.build_opener()
        self.client = Client(Transport(MachineToken(self.entry)))

    def attribute(self, name: str) -> str:
        """Return a metadata value."""
        return self.metadata(f"instance/attributes/{name}")[0]

    def entry(self, path: str) -> str:
        """Return an entry of the metadata server."""
        return self.metadata(f"instance/{path}")[0]

    def limits(self, seconds: int) -> Json:
        """Return the limits: at once at first, then on a change or after so many seconds."""
        query = {"wait_for_change": "true", "timeout_sec": str(seconds)}
        query["last_etag"] = self._etag or "0"
        text, self._etag = self.metadata(
            f"instance/attributes/limits?{urllib.parse.urlencode(query)}"
        )
        return dict(json.loads(text))

    def has_limits(self) -> bool:
        """Return whether there are any limits; that changes with the machine alone."""
        return self.optional("limits") is not None

    def tpus(self) -> list[str]:
        """Return the names of the trainer's TPUs."""
        names = self.optional("tpu-names") or self.attribute("tpu-name")
        return names.split(",")

    def further_zones(self) -> list[str]:
        """Return the zones in which the TPUs may be beside the first; none for most stacks."""
        return (self.optional("tpu-zones") or "").split(",")[1:]

    def trainer_arguments(self) -> list[str]:
        """Return what tells the trainer in which zones to look for its TPU, if it may move."""
        zones = self.optional("tpu-zones")
        return [f"--tpu-zone={zones}"] if zones else []

    def trainer_environment(self) -> dict[str, str]:
        """Return what changes with the stack without another boot."""
        note = self.optional("cost-note")
        return {} if note is None else {"TPU_TRAINING_COST_NOTE": note}

    @staticmethod
    def turn_off() -> None:
        """Turn the machine off."""
        subprocess.run(["systemctl", "poweroff"], check=True)

    def optional(self, name: str) -> str | None:
        """Return a metadata value; None if there is none."""
        try:
            return self.attribute(name)
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            raise

    def metadata(self, path: str) -> tuple[str, str]:
        """Return an entry of the metadata server, and its ETag. Raises OSError."""
        request = urllib.request.Request(_METADATA + path, headers={"Metadata-Flavor": "Google"})
        with self._opener.open(request, timeout=_METADATA_SECONDS) as response:
            return response.read().decode(), response.headers.get("ETag", "")


def oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since the boot."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
