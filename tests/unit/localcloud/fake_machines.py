"""Machines without processes, for tests of what the APIs say."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from localcloud.core.cloud import MachineSpec, SerialLog


class FakeMachines:
    """Does what the APIs notice of machines: the port of a TPU worker listens."""

    def __init__(self) -> None:
        self.specs: dict[str, MachineSpec] = {}
        self.preempted: list[str] = []
        self.answering: dict[str, tuple[str, int]] = {}
        """Where machines serve, whichever of their ports is asked for."""
        self.logs: list[SerialLog] = []
        """What machines have sent to Cloud Logging."""
        self._sockets: dict[str, contextlib.ExitStack] = {}

    def boot(self, spec: MachineSpec) -> None:
        """Let the machine's TPU worker listen."""
        self.specs[spec.key] = spec
        opened = self._sockets.setdefault(spec.key, contextlib.ExitStack())
        for command in spec.daemons.values():
            options = dict(part.split("=", 1) for part in command if part.startswith("--"))
            # A test beside this one may have taken the same free port: then it listens already.
            with contextlib.suppress(OSError):
                address = ("127.0.0.1", int(options["--port"]))
                opened.enter_context(socket.create_server(address))
            Path(options["--ready"]).write_text(options["--port"])

    def halt(self, key: str, *, grace: float | None = None) -> None:
        """Close its port."""
        with contextlib.suppress(KeyError):
            self._sockets.pop(key).close()

    def preempt(self, key: str) -> None:
        """Close its port and note it."""
        self.preempted.append(key)
        self.halt(key)

    def discard(self, disk: str) -> None:
        """Do nothing: there are no files on a disk."""

    def remove(self, key: str, *, keep_disk: bool = False) -> None:
        """Close its port and forget it."""
        self.halt(key)
        self.specs.pop(key, None)

    def update(self, spec: MachineSpec) -> None:
        """Note the changed machine."""
        self.specs[spec.key] = spec

    def running(self, key: str) -> bool:
        """Return whether it is up."""
        return key in self._sockets

    def port(self, key: str) -> int:
        """Raise KeyError: a machine without processes has no listener."""
        raise KeyError(key)

    def address(self, key: str, port: int) -> tuple[str, int] | None:
        """Return where a test lets the machine serve."""
        return self.answering.get(key)

    def guest_attributes(self, key: str) -> dict[str, str]:
        """Return one that names the machine."""
        return {"hostkeys/ssh-ed25519": f"key of {key.rpartition('/')[2]}"}

    def serial(self, key: str, start: int = 0) -> tuple[str, int]:
        """Return nothing: no guest writes to it."""
        return "", start

    def serial_logs(self, project: str) -> list[SerialLog]:
        """Return what a test lets the machines of a project have sent."""
        return [log for log in self.logs if log.project == project]

    def processes(self) -> list[int]:
        """Return none."""
        return []

    def pids(self, key: str) -> list[int]:
        """Return none."""
        return []

    def guests(self, key: str) -> list[int]:
        """Return none."""
        return []

    def fill_disk(self, key: str, full: bool) -> None:
        """Do nothing: no process writes."""

    def suspend_all(self) -> None:
        """Close all ports."""
        for key in list(self._sockets):
            self.halt(key)

    def resume_all(self) -> None:
        """Do nothing: there were no processes."""
