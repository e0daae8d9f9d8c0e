"""Sockets that the service manager listens at for a service until its first connection.

All machines share the host's loopback interface, so a port of a machine is another one there; the
folder `ports` says which.
"""

from __future__ import annotations

import socket
from pathlib import Path

from localcloud.machines.supervisor.loop import Loop
from localcloud.machines.supervisor.unit import Unit
from localcloud.machines.supervisor.unit_file import UnitError

PORTS = "ports"
_HIGHEST = 65535


class Socket:
    """One TCP port of the machine, handed to a unit when the first connection waits.

    Args:
        loop: tells when a connection waits.
        port: as the guest counts.
        unit: takes the connections; it is started again if it has ended.
    """

    def __init__(self, loop: Loop, port: int, unit: Unit) -> None:
        self._loop = loop
        self._unit = unit
        self._socket = socket.create_server(("127.0.0.1", 0))
        unit.listener = self._socket.fileno()
        Path(PORTS).mkdir(exist_ok=True)
        Path(PORTS, str(port)).write_text(str(self._socket.getsockname()[1]), encoding="utf-8")
        self._watch()

    def _watch(self) -> None:
        self._loop.watch(self._socket.fileno(), self._connected)

    def _connected(self) -> None:
        self._loop.forget(self._socket.fileno())
        self._unit.start()
        self._unit.when_settled(self._ended, ended=True)

    def _ended(self) -> None:
        # A unit that takes no connection ends again and again; systemd closes its socket then.
        if self._unit.result != "start-limit-hit":
            self._watch()


def port_of(assignment: str) -> int:
    """Return the port in a socket unit's `ListenStream=PORT`.

    Raises:
        UnitError: for every other property, and for addresses that are no port alone.
    """
    name, _, value = assignment.partition("=")
    if name != "ListenStream" or not value.isdigit() or not 0 < int(value) <= _HIGHEST:
        raise UnitError(f"{assignment}: the local machine has only ListenStream=PORT")
    return int(value)


def forget_ports() -> None:
    """Forget the ports of an earlier boot."""
    for path in Path(PORTS).glob("*"):
        path.unlink()
