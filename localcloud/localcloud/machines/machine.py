"""One machine that runs: its first process, its network and its metadata server."""

from __future__ import annotations

import contextlib
import json
import logging
import ssl
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localcloud.core.cloud import Cloud
from localcloud.core.machines import MachineSpec
from localcloud.machines.image import Image, supervisor_command
from localcloud.machines.metadata.server import MetadataServer
from localcloud.machines.processes import descendants, kill_all, marked
from localcloud.machines.unit import PORTS
from localcloud.server.listener import Answer, Listener

log = logging.getLogger(__name__)
# Seconds beyond the grace for killing and collecting all processes.
_MARGIN = 15.0


@dataclass(frozen=True)
class Network:
    """What every machine's listener needs.

    Attributes:
        tls: shown to clients of Google's hosts.
        bundle: certificate authorities that the machine's clients trust.
        apis: answers the calls to Google's APIs.
    """

    tls: ssl.SSLContext
    bundle: Path
    apis: Answer


class Machine:
    """A machine from boot to halt.

    Args:
        cloud: the cloud.
        spec: what to run.
        folder: its files, which outlive it.
        network: what its listener needs.
        port: of the listener, if it is free.
        told: gets `poweroff` or `reboot` when the guest asks for it or its first process dies.
    """

    def __init__(
        self,
        cloud: Cloud,
        spec: MachineSpec,
        folder: Path,
        network: Network,
        port: int,
        told: Callable[[str], None],
    ) -> None:
        self.image = Image(folder, spec.name, spec.programs)
        self.metadata = MetadataServer(cloud, spec)
        self._told = told
        self._halting = False
        # A killed emulator leaves processes behind where the kernel does not end orphans.
        self._kill_leftovers()
        self._listener = _listen(port, network, self.metadata)
        with (folder / "supervisor.log").open("ab") as errors:
            self._process = subprocess.Popen(
                supervisor_command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                # As on Debian; nobody else gets into the home folder.
                umask=0o022,
            )
        self._order(self._config(spec, network))
        threading.Thread(target=self._hear, name=f"machine {spec.name}", daemon=True).start()

    @property
    def port(self) -> int:
        """The port of its listener."""
        return self._listener.port

    def processes(self) -> set[int]:
        """Return its processes, the first one included."""
        first = self._process.pid
        return {first} | descendants(first) | self._marked()

    def guests(self) -> set[int]:
        """Return the processes that do the machine's work."""
        return self.processes() - {self._process.pid}

    def fill_disk(self, full: bool) -> None:
        """Let its disk be full, or not."""
        self._order({"full_disk": full})

    def address(self, port: int) -> tuple[str, int] | None:
        """Return where the host reaches a port of the machine; None if nobody listens at it."""
        with contextlib.suppress(OSError, ValueError):
            found = (self.image.run / PORTS / str(port)).read_text(encoding="utf-8")
            return "127.0.0.1", int(found)
        return None

    def halt(self, grace: float) -> None:
        """End all its processes: politely for `grace` seconds, then by force."""
        self._halting = True
        with contextlib.suppress(OSError):
            self._order({"halt": grace})
        try:
            self._process.wait(grace + _MARGIN)
        except subprocess.TimeoutExpired:
            log.error("%s does not halt; killing it", self.image.folder.name)
            self._process.kill()
            self._process.wait()
        self._kill_leftovers()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                _not_none(pipe).close()
        self.metadata.close()
        self._listener.stop()

    def _config(self, spec: MachineSpec, network: Network) -> dict[str, object]:
        return {
            "name": spec.name,
            "banner": f"{spec.machine_type} in {spec.zone}, a machine of the local cloud",
            "root": str(self.image.root),
            "run": str(self.image.run),
            "bin": str(self.image.bin),
            "serial": str(self.image.serial),
            "environment": self.image.environment(self.port, network.bundle),
            "daemons": spec.daemons,
            "daemon_environment": spec.environment,
            "shutdown_script": any(key.startswith("shutdown-script") for key in spec.attributes),
        }

    def _order(self, order: dict[str, object]) -> None:
        pipe = _not_none(self._process.stdin)
        pipe.write(json.dumps(order).encode() + b"\n")
        pipe.flush()

    def _hear(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in _not_none(self._process.stdout):
                event = json.loads(line)["event"]
                if event in ("poweroff", "reboot") and not self._halting:
                    self._told(event)
        if not self._halting:
            log.error("the first process of %s ended by itself", self.image.folder.name)
            self._told("poweroff")

    def _marked(self) -> set[int]:
        return marked("LOCALCLOUD_MACHINE", str(self.image.folder))

    def _kill_leftovers(self) -> None:
        kill_all(self._marked)


def _listen(port: int, network: Network, metadata: MetadataServer) -> Listener:
    direct = metadata.answer
    try:
        listener = Listener(port, tls=network.tls, apis=network.apis, direct=direct)
    except OSError:
        listener = Listener(0, tls=network.tls, apis=network.apis, direct=direct)
    listener.start()
    return listener


def _not_none(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("the process has no pipe")
    return pipe
