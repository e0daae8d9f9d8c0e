"""The machine as its service manager sees it: its units, from boot to power-off."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localcloud.machines.supervisor import processes
from localcloud.machines.supervisor.console import Console
from localcloud.machines.supervisor.loop import Loop
from localcloud.machines.supervisor.sockets import Socket, forget_ports
from localcloud.machines.supervisor.unit import Unit
from localcloud.machines.supervisor.unit_file import UnitError, UnitSpec, read

STARTUP = "google-startup-scripts.service"
SHUTDOWN = "google-shutdown-scripts.service"
_RUNNER = "google_metadata_script_runner"
_POLL = 0.02


class System:
    """Runs units until the machine is halted.

    Args:
        loop: the event loop.
        config: what the emulator says about this boot, see `Machine` beside this package.
        emit: tells the emulator something.
    """

    def __init__(
        self, loop: Loop, config: dict[str, Any], emit: Callable[[dict[str, str]], None]
    ) -> None:
        self.loop = loop
        self.host: str = config["name"]
        self.root: str = config["root"]
        self.environment: dict[str, str] = config["environment"]
        self.console = Console(Path(config["serial"]))
        self.units: dict[str, Unit] = {}
        self.sockets: dict[int, Socket] = {}
        self.halting = False
        self._config = config
        self._emit = emit
        self._files = Path(self.environment["SYSTEMD_UNIT_PATH"])
        self._enabled = Path(config["enabled"])

    def boot(self) -> None:
        """Start the image's daemons, the enabled units and the start-up script."""
        forget_ports()
        self.console.firmware("UEFI: Attempting to start image.")
        self.console.kernel("Linux version 6.1.0-local-cloud-amd64")
        self.console.kernel(f"{self.host} boots: {self._config['banner']}")
        for name, command in self._config["daemons"].items():
            spec = UnitSpec(f"{name}.service", command=command, restart="always", restart_sec=1.0)
            spec.identifier, spec.console, spec.start_interval = name, True, 0.0
            spec.environment = self._config["daemon_environment"]
            self.add(spec).start()
        for name in self.enabled():
            try:
                self.find(name).start()
            except UnitError as error:
                self.console.manager(name, str(error))
        self._script(STARTUP, "startup").start()

    def add(self, spec: UnitSpec) -> Unit:
        """Load a unit."""
        unit = Unit(spec, self.loop, self.console, self.environment, self.root)
        self.units[spec.name] = unit
        return unit

    def listen(self, port: int, unit: Unit) -> None:
        """Let a unit have the connections to a port of the machine.

        Raises:
            UnitError: when the port is taken.
        """
        if port in self.sockets:
            raise UnitError(f"Failed to create listening socket ({port}): Address already in use")
        self.sockets[port] = Socket(self.loop, port, unit)

    def find(self, name: str) -> Unit:
        """Return the unit, read from its file if it isn't loaded.

        Raises:
            UnitError: when there is none or its file is wrong.
        """
        name = full_name(name)
        if name not in self.units:
            path = self._files / name
            if not path.is_file():
                raise UnitError(f"Unit {name} could not be found.")
            self.add(read(name, path.read_text(encoding="utf-8")))
        return self.units[name]

    def reload(self) -> None:
        """Read the unit files of loaded units again."""
        for name, unit in self.units.items():
            path = self._files / name
            if path.is_file():
                unit.spec = read(name, path.read_text(encoding="utf-8"))

    def enabled(self) -> list[str]:
        """Return the units that start at boot."""
        if not self._enabled.exists():
            return []
        return self._enabled.read_text(encoding="utf-8").split()

    def enable(self, name: str, *, on: bool) -> None:
        """Start a unit at every boot from now on, or no longer."""
        names = [other for other in self.enabled() if other != name] + [name] * on
        self._enabled.write_text("".join(f"{other}\n" for other in names), encoding="utf-8")

    def ask_power(self, mode: str) -> None:
        """Tell the emulator that the guest wants to be off (`poweroff`) or on again (`reboot`)."""
        self._emit({"event": mode})

    def halt(self, grace: float) -> None:
        """End everything: politely for `grace` seconds, then by force; then stop the loop."""
        if self.halting:
            return
        self.halting = True
        if self._config["shutdown_script"] and grace > 0:
            self._script(SHUTDOWN, "shutdown").start()
        script = self.units.get(SHUTDOWN)
        for unit in self.units.values():
            if unit is not script:
                unit.stop(grace)
        # Background processes of start-up scripts belong to no unit, so no unit's stop ends them.
        own = {script.pid, *script.members()} if script else set()
        processes.send(self.everything() - own, 15)
        self._await_end(time.monotonic() + grace)

    def kill(self) -> None:
        """End everything at once."""
        processes.kill_all(self.everything)

    def everything(self) -> set[int]:
        """Return all processes of the machine but this one."""
        mark = processes.marked("LOCALCLOUD_MACHINE", self.environment["LOCALCLOUD_MACHINE"])
        return (processes.descendants(os.getpid()) | mark) - {os.getpid()}

    def _await_end(self, deadline: float) -> None:
        # A unit keeps its process until the loop has collected it, and so its last lines.
        left = self.everything() or any(unit.pid for unit in self.units.values())
        if left and time.monotonic() < deadline:
            self.loop.later(_POLL, lambda: self._await_end(deadline))
            return
        self.kill()
        for unit in self.units.values():
            unit.drain()
        self.console.kernel("reboot: Power down")
        self.loop.stop()

    def _script(self, name: str, kind: str) -> Unit:
        spec = UnitSpec(name, command=[_RUNNER, kind], type="oneshot", kill_mode="process")
        spec.console, spec.start_interval = True, 0.0
        spec.command[0] = os.path.join(self._config["bin"], _RUNNER)
        return self.add(spec)


def full_name(name: str) -> str:
    """Return a unit's name with its type.

    Raises:
        UnitError: for a unit that is no service.
    """
    if not name.endswith(".service") and "." in name:
        raise UnitError(f"{name}: the local machine has only services (.service)")
    return name if name.endswith(".service") else f"{name}.service"
