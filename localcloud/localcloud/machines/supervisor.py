"""A machine's first process: boots it, runs its units, ends them; in part what systemd does.

The emulator starts it with a pipe on each end. The first line on standard input is the boot's
configuration, later ones are orders, all JSON. The end of standard input means that the emulator is
gone, however it went: everything is killed. Of systemd there is what start-up scripts use:
`systemd-run`, `systemctl is-active`, `stop` and `poweroff`, `shutdown` and its like.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from localcloud.machines import processes
from localcloud.machines import unit as systemd
from localcloud.machines.unit import Unit, UnitError, UnitSpec

_STARTUP = "google-startup-scripts.service"
_SHUTDOWN = "google-shutdown-scripts.service"
_RUNNER = "google_metadata_script_runner"
_POLL = 0.02
_IN, _OUT = 0, 1
_CHUNK = 1 << 16
_SOCKET = "control"
# Exit codes of systemctl: EXIT_NOTINSTALLED and EXIT_NOTRUNNING of the LSB.
_NO_SUCH_UNIT, _NOT_RUNNING = 5, 3


class System:
    """Runs units until the machine is halted.

    Args:
        loop: the event loop.
        config: what the emulator says about this boot, see `Machine`.
        emit: tells the emulator `booted`, or what the guest wants: `poweroff` or `reboot`.
    """

    def __init__(
        self, loop: processes.Loop, config: dict[str, Any], emit: Callable[[str], None]
    ) -> None:
        self.loop = loop
        self.units: dict[str, Unit] = {}
        self._sockets: dict[int, systemd.Socket] = {}
        self._environment: dict[str, str] = config["environment"]
        self._console = systemd.Console(Path(config["serial"]))
        self._halting = False
        self._config = config
        self.emit = emit

    def boot(self) -> None:
        """Start the image's daemons and the start-up script."""
        systemd.forget_ports()
        self._console.firmware("UEFI: Attempting to start image.")
        self._console.kernel("Linux version 6.1.0-local-cloud-amd64")
        self._console.kernel(f"{self._config['name']} boots: {self._config['banner']}")
        for name, command in self._config["daemons"].items():
            spec = UnitSpec(f"{name}.service", command, restart="always", restart_sec=1.0)
            # Without an interval no number of restarts is too many: the image never gives up.
            spec.identifier, spec.console, spec.start_interval = name, True, 0.0
            spec.environment = self._config["daemon_environment"]
            self.add(spec).start()
        self._script(_STARTUP, "startup").start()
        self.emit("booted")

    def add(self, spec: UnitSpec) -> Unit:
        """Load a unit; it takes the place of an ended one of its name."""
        unit = Unit(spec, self.loop, self._console, self._environment, self._config["root"])
        self.units[spec.name] = unit
        return unit

    def listen(self, port: int, unit: Unit) -> None:
        """Let a unit have the connections to a port of the machine."""
        if port in self._sockets:
            raise UnitError(f"Failed to create listening socket ({port}): Address already in use")
        self._sockets[port] = systemd.Socket(self.loop, port, unit)

    def halt(self, grace: float) -> None:
        """End everything: politely for `grace` seconds, then by force; then stop the loop."""
        # The guest's own `poweroff` and the emulator's order may come at once.
        if self._halting:
            return
        self._halting = True
        if self._config["shutdown_script"] and grace > 0:
            self._script(_SHUTDOWN, "shutdown").start()
        script = self.units.get(_SHUTDOWN)
        for unit in self.units.values():
            if unit is not script:
                unit.stop(grace)
        # Background processes of start-up scripts belong to no unit, so no unit's stop ends them.
        own = {script.pid, *script.members()} if script else set()
        processes.send(self._everything() - own, signal.SIGTERM)
        self._await_end(time.monotonic() + grace)

    def quit(self) -> NoReturn:
        """End everything and the supervisor at once."""
        processes.kill_all(self._everything)
        os._exit(0)

    def _everything(self) -> set[int]:
        """Return all processes of the machine but this one."""
        mark = processes.marked("LOCALCLOUD_MACHINE", self._environment["LOCALCLOUD_MACHINE"])
        return (processes.descendants(os.getpid()) | mark) - {os.getpid()}

    def _await_end(self, deadline: float) -> None:
        # A unit keeps its process until the loop has collected it, and so its last lines.
        left = self._everything() or any(unit.pid for unit in self.units.values())
        if left and time.monotonic() < deadline:
            self.loop.later(_POLL, lambda: self._await_end(deadline))
            return
        processes.kill_all(self._everything)
        for unit in self.units.values():
            unit.drain()
        self._console.kernel("reboot: Power down")
        self.loop.stop()

    def _script(self, name: str, kind: str) -> Unit:
        command = [os.path.join(self._config["bin"], _RUNNER), kind]
        spec = UnitSpec(name, command, kill_mode="process", console=True, start_interval=0.0)
        return self.add(spec)


@dataclass
class Reply:
    """Answers one command of the guest, once, now or later.

    Attributes:
        connection: to the command; closed with the answer.
        path: the caller's PATH.
        cwd: the caller's working directory.
    """

    connection: socket.socket
    path: str
    cwd: str

    def done(self, out: str = "", *, err: str = "", code: int = 0) -> None:
        """Let the command print `out` and `err` and exit with `code`."""
        # A caller that was stopped must not stop the machine.
        self.connection.settimeout(5)
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps({"out": out, "err": err, "code": code}).encode())
        self.connection.close()


class _Arguments(argparse.ArgumentParser):
    """An argument parser that raises, so that an unknown option fails by name."""

    def __init__(self, program: str, *flags: str) -> None:
        super().__init__(prog=program, add_help=False, allow_abbrev=False)
        for flag in flags:
            self.add_argument(*flag.split(), action="store_true")

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting: the parser runs in the machine's first process."""
        raise UnitError(f"{self.prog}: {message} (the local machine's {self.prog})")


def _systemd_run(system: System, reply: Reply, arguments: list[str]) -> None:
    """Run a command as a service, at once or at the first connection.

    The answer comes when it has started, or with --wait when it has ended.
    """
    parser = _Arguments("systemd-run", "--same-dir -d", "--collect -G", "--wait")
    parser.add_argument("--unit", "-u", default="")
    for option in ("--property -p", "--socket-property", "--setenv -E"):
        parser.add_argument(*option.split(), action="append", default=[])
    parser.add_argument("--description")
    parser.add_argument("command", nargs="...")
    parsed = parser.parse_args(arguments)
    if not parsed.command:
        raise UnitError("Command line to execute required.")
    spec = UnitSpec(_full_name(parsed.unit or f"run-{uuid.uuid4().hex[:12]}"), [])
    if spec.name in system.units and not _is_unloaded(system.units[spec.name]):
        raise UnitError(
            f"Failed to start transient service unit: Unit {spec.name} was already loaded or has "
            "a fragment file."
        )
    # By the caller's PATH, as systemd-run does; the machine's own programs come first there.
    executable = shutil.which(parsed.command[0], path=reply.path)
    if executable is None:
        raise UnitError(f"Failed to find executable {parsed.command[0]}: No such file or directory")
    spec.command = [os.path.abspath(executable), *parsed.command[1:]]
    for assignment in parsed.property:
        spec.assign(assignment)
    for pair in parsed.setenv:
        name, separator, spec.environment[name] = pair.partition("=")
        if not separator:
            raise UnitError(f"--setenv={pair}: NAME=VALUE is needed by the local machine")
    spec.directory = reply.cwd if parsed.same_dir else ""
    spec.collect = parsed.collect
    listening = [systemd.port_of(assignment) for assignment in parsed.socket_property]
    unit = system.add(spec)
    if listening:
        system.listen(listening[0], unit)
        name = spec.name.removesuffix(".service")
        reply.done(err=f"Running socket as unit: {name}.socket\n")
        return
    unit.start()
    announced = f"Running as unit: {spec.name}\n"
    if parsed.wait:
        unit.when_settled(lambda: reply.done(err=announced, code=_exit_code(unit)), ended=True)
    else:
        reply.done(err=announced, code=int(unit.state == "failed"))


def _exit_code(unit: Unit) -> int:
    # A shell's way to say that a signal ended it, as systemd-run has no number of its own.
    code = unit.code or 0
    return code if code >= 0 else 128 - code


def _is_unloaded(unit: Unit) -> bool:
    """Return whether a unit's name is free again; that of a failed one only with --collect.

    systemd keeps a failed unit for people to look at.
    """
    over = unit.state == "inactive" or (unit.state == "failed" and unit.spec.collect)
    return over and unit.listener is None


def _systemctl(system: System, reply: Reply, arguments: list[str]) -> None:
    parser = _Arguments("systemctl", "--quiet -q", "--force -f")
    parser.add_argument("verb")
    parser.add_argument("units", nargs="*")
    # Options may stand between the verb and the units.
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.verb in ("poweroff", "halt", "reboot"):
        _end("reboot" if parsed.verb == "reboot" else "poweroff", system, reply, [])
        return
    if parsed.verb not in ("is-active", "stop"):
        raise UnitError(f"Unknown command verb {parsed.verb}. (the local machine's systemctl)")
    if not parsed.units:
        raise UnitError("Too few arguments.")
    names = [_full_name(name) for name in parsed.units]
    units = [system.units.get(name) for name in names]
    if parsed.verb == "is-active":
        states = [unit.state if unit else "inactive" for unit in units]
        shown = "" if parsed.quiet else "".join(f"{state}\n" for state in states)
        reply.done(shown, code=0 if "active" in states else _NOT_RUNNING)
    else:
        _stop(system, reply, names)


def _stop(system: System, reply: Reply, names: list[str]) -> None:
    """Stop units and answer when the last one is over."""
    if missing := [name for name in names if name not in system.units]:
        error = f"Failed to stop {missing[0]}: Unit {missing[0]} not loaded.\n"
        reply.done(err=error, code=_NO_SUCH_UNIT)
        return
    left = set(names)

    def stopped(name: str) -> None:
        left.discard(name)
        if not left:
            reply.done()

    for name in names:
        system.units[name].stop()
    for name in left.copy():
        system.units[name].when_settled(partial(stopped, name), ended=True)


def _full_name(name: str) -> str:
    # As for systemd, a name without a suffix is a service's.
    if not name.endswith(".service") and "." in name:
        raise UnitError(f"{name}: the local machine has only services (.service)")
    return name if name.endswith(".service") else f"{name}.service"


def _shutdown(system: System, reply: Reply, arguments: list[str]) -> None:
    parser = _Arguments("shutdown", "--poweroff -P", "--halt -h -H", "--reboot -r")
    parser.add_argument("when", nargs="?", default="+1")
    parsed = parser.parse_args(arguments)
    if parsed.when not in ("now", "+0"):
        raise UnitError(f"shutdown: {parsed.when}: the local machine can only shut down 'now'")
    _end("reboot" if parsed.reboot else "poweroff", system, reply, [])


def _end(mode: str, system: System, reply: Reply, arguments: list[str]) -> None:
    """Answer the command, then tell the emulator, which halts the machine."""
    _Arguments(mode, "--force -f").parse_args(arguments)
    reply.done()
    system.emit(mode)


_PROGRAMS: dict[str, Callable[[System, Reply, list[str]], None]] = {
    "systemd-run": _systemd_run,
    "systemctl": _systemctl,
    "shutdown": _shutdown,
    "poweroff": partial(_end, "poweroff"),
    "halt": partial(_end, "poweroff"),
    "reboot": partial(_end, "reboot"),
}


class Control:
    """The socket at which the guest's commands (`systemctl` and its like) arrive.

    It is in the current directory: the relative name fits macOS's 104 bytes.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_SOCKET)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(_SOCKET)
        Path(_SOCKET).chmod(0o600)
        self._socket.listen(16)
        system.loop.watch(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        client, _ = self._socket.accept()
        client.setblocking(False)
        self._system.loop.watch(client.fileno(), partial(self._read, client, bytearray()))

    def _read(self, client: socket.socket, received: bytearray) -> None:
        try:
            data = client.recv(_CHUNK)
        except OSError:
            data = b""
        received += data
        if data and b"\n" not in received:
            return
        self._system.loop.forget(client.fileno())
        if data:
            self._run(client, json.loads(received))
        else:
            client.close()

    def _run(self, client: socket.socket, request: dict[str, Any]) -> None:
        reply = Reply(client, request["path"], request["cwd"])
        try:
            _PROGRAMS[request["program"]](self._system, reply, request["arguments"])
        except UnitError as error:
            reply.done(err=f"{error}\n", code=1)


class Orders:
    """The emulator's orders to a running system, JSON, one a line, on standard input."""

    def __init__(self, system: System, rest: bytes) -> None:
        self._system = system
        self._received = rest
        os.set_blocking(_IN, False)
        system.loop.watch(_IN, self._read)
        # An order that came along with the configuration is carried out after the boot.
        system.loop.later(0, self._obey)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(_IN, _CHUNK)
            if not data:
                self._system.quit()
            self._received += data
            self._obey()

    def _obey(self) -> None:
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            order = json.loads(line)
            if "halt" in order:
                self._system.halt(order["halt"])
            else:
                processes.fill_disk(order["full_disk"], processes.descendants(os.getpid()))


def main() -> None:
    """Boot with the configuration on standard input, serve, end."""
    # Then daemons that detach themselves stay below this process, and end with the machine.
    processes.adopt_orphans()
    received = b""
    while b"\n" not in received:
        if not (data := os.read(_IN, _CHUNK)):
            sys.exit(0)
        received += data
    line, _, rest = received.partition(b"\n")
    config = json.loads(line)
    # Relative names of sockets and ports are short enough for every system.
    os.chdir(config["run"])
    loop = processes.Loop()
    system = System(loop, config, _emit)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: loop.later(0, system.quit))
    Control(system)
    Orders(system, rest)
    system.boot()
    loop.run()


def _emit(event: str) -> None:
    with contextlib.suppress(OSError):
        os.write(_OUT, json.dumps({"event": event}).encode() + b"\n")
