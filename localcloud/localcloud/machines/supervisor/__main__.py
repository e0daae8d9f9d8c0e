"""Runs one machine from boot to halt; started by the emulator with a pipe on each end.

The first line on standard input is the boot's configuration, later ones are commands, all JSON.
The end of standard input means that the emulator is gone, however it went: everything is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from localcloud.machines.supervisor import disk, processes
from localcloud.machines.supervisor.control import Control
from localcloud.machines.supervisor.loop import Loop
from localcloud.machines.supervisor.system import System

_IN, _OUT = 0, 1


class Orders:
    """The emulator's commands to a running system."""

    def __init__(self, system: System, rest: bytes) -> None:
        self._system = system
        self._received = rest
        os.set_blocking(_IN, False)
        system.loop.watch(_IN, self._read)
        # A command that came along with the configuration is carried out after the boot.
        system.loop.later(0, self._obey)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(_IN, 1 << 16)
            if not data:
                self._system.kill()
                # The emulator is gone.
                os._exit(0)
            self._received += data
            self._obey()

    def _obey(self) -> None:
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            order = json.loads(line)
            if "halt" in order:
                self._system.halt(order["halt"])
            else:
                disk.fill(order["full_disk"], processes.descendants(os.getpid()))


def main() -> None:
    """Boot, serve, end."""
    processes.adopt_orphans()
    config, rest = _first_line()
    os.chdir(config["run"])
    loop = Loop()
    system = System(loop, config, _emit)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: loop.later(0, lambda: _quit(system)))
    Control(system)
    Orders(system, rest)
    system.boot()
    _emit({"event": "booted"})
    loop.run()


def _first_line() -> tuple[dict[str, Any], bytes]:
    received = b""
    while b"\n" not in received:
        data = os.read(_IN, 1 << 16)
        if not data:
            sys.exit(0)
        received += data
    line, _, rest = received.partition(b"\n")
    return json.loads(line), rest


def _emit(event: dict[str, str]) -> None:
    with contextlib.suppress(OSError):
        os.write(_OUT, json.dumps(event).encode() + b"\n")


def _quit(system: System) -> None:
    system.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
