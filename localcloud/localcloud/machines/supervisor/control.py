"""The socket at which the guest's commands (`systemctl` and its like) reach the manager."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from localcloud.machines.supervisor import journalctl, power, systemctl, systemd_run
from localcloud.machines.supervisor.reply import Reply, Usage
from localcloud.machines.supervisor.system import System
from localcloud.machines.supervisor.unit_file import UnitError

SOCKET = "control"
_PROGRAMS: dict[str, Callable[[System, Reply, list[str]], None]] = {
    "systemd-run": systemd_run.run,
    "systemctl": systemctl.run,
    "journalctl": journalctl.run,
    "shutdown": power.shutdown,
    "poweroff": partial(power.end, "poweroff"),
    "halt": partial(power.end, "poweroff"),
    "reboot": partial(power.end, "reboot"),
}


class Control:
    """Serves the socket in the current directory; the relative name fits macOS's 104 bytes."""

    def __init__(self, system: System) -> None:
        self._system = system
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(SOCKET)
        Path(SOCKET).chmod(0o600)
        self._socket.listen(16)
        system.loop.watch(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        client, _ = self._socket.accept()
        client.setblocking(False)
        _Client(self._system, client)


@dataclass
class _Client:
    system: System
    connection: socket.socket
    _received: bytes = b""

    def __post_init__(self) -> None:
        self.system.loop.watch(self.connection.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            data = b""
        self._received += data
        if data and b"\n" not in self._received:
            return
        self.system.loop.forget(self.connection.fileno())
        if data:
            self._run(json.loads(self._received))
        else:
            self.connection.close()

    def _run(self, request: dict[str, Any]) -> None:
        reply = Reply(self._send, request["path"], request["cwd"])
        program = request["program"]
        try:
            _PROGRAMS[program](self.system, reply, request["arguments"])
        except Usage as error:
            reply.fail(f"{program}: {error}", 1)
        except UnitError as error:
            reply.fail(str(error), 1)

    def _send(self, answer: dict[str, Any]) -> None:
        self.connection.setblocking(True)
        self.connection.settimeout(5)
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(answer).encode())
        self.connection.close()
