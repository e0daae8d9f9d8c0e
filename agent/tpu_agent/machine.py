"""The machine that the agent runs on: its metadata, its account, its power switch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError

from tpu_core.contract import Environment, Limits, Metadata
from tpu_core.google import Client, MachineToken, MetadataServer, Transport
from tpu_core.tpu import Place

# A job that asks through its own metadata server may wait there for a change for a minute.
_METADATA_SECONDS = 120.0
BASE = Path(os.environ.get(Environment.BASE) or Path(sys.argv[0]).parent)
"""Where the agent keeps what outlives its process; its own file is in memory."""


class Machine:
    """The machine that this process runs on. Everything it reads raises OSError."""

    def __init__(self) -> None:
        self._etag = ""
        self._server = MetadataServer()
        self.client = Client(Transport(MachineToken(self.entry)))

    def metadata(self, path: str) -> tuple[str, str]:
        """Return an entry of the metadata server, and its ETag."""
        return self._server.read(path, _METADATA_SECONDS)

    def entry(self, path: str) -> str:
        """Return an entry below `instance/`."""
        return self.metadata(f"instance/{path}")[0]

    def attribute(self, name: str) -> str:
        """Return a metadata value."""
        return self.entry(f"attributes/{name}")

    def optional(self, name: str) -> str | None:
        """Return a metadata value; None if there is none."""
        try:
            return self.attribute(name)
        except HTTPError as error:
            if error.code == 404:
                return None
            raise

    def place(self) -> Place:
        """Return where the stack's TPUs and bucket are."""
        bucket = self.attribute(Metadata.BUCKET_URL).removeprefix("gs://")
        project, zone = (self.attribute(name) for name in (Metadata.TPU_PROJECT, Metadata.TPU_ZONE))
        return Place(project, zone, bucket, self.further_zones)

    def further_zones(self) -> list[str]:
        """Return the zones that the TPUs may be in besides the first; none for most stacks."""
        return (self.optional(Metadata.TPU_ZONES) or "").split(",")[1:]

    def tpus(self) -> list[str]:
        """Return the names of the trainer's TPUs."""
        names = self.optional(Metadata.TPU_NAMES) or self.attribute(Metadata.TPU_NAME)
        return names.split(",")

    def has_limits(self) -> bool:
        """Return whether the agent has anything to enforce or recover."""
        return self.optional(Metadata.LIMITS) is not None

    def limits(self, seconds: int) -> Limits:
        """Return the limits: at once at first, then on a change or after so many seconds."""
        path = f"instance/attributes/{Metadata.LIMITS}"
        text, self._etag = self._server.wait(path, self._etag, seconds)
        limits: Limits = json.loads(text)
        return limits

    def trainer_arguments(self) -> list[str]:
        """Return the zones in which the trainer looks for its TPU, if it may move."""
        zones = self.optional(Metadata.TPU_ZONES)
        return [f"--tpu-zone={zones}"] if zones else []

    def trainer_environment(self) -> dict[str, str]:
        """Return variables that change with the stack without another boot."""
        note = self.optional(Metadata.COST_NOTE)
        return {} if note is None else {Environment.COST_NOTE: note}

    @staticmethod
    def turn_off() -> None:
        """Turn the machine off."""
        subprocess.run(["systemctl", "poweroff"], check=True)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since the boot."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
