"""A machine's first process: boots it, runs its units, ends them; in part what systemd does.

The emulator starts it with a pipe on each end. The first line on standard input is the boot's
configuration, later ones are orders, all JSON. The end of standard input means that the emulator is
gone, however it went: everything is killed. Of systemd there is what start-up scripts use:
`systemd-run`, `systemctl is-active` and `poweroff`, `shutdown` and its like. A unit has a thread
that follows its process, and one that reads its output.
"""

import argparse
import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any, NoReturn

from localcloud.machines import processes

_HIGHEST_PORT = 65535
_RUNNER = "google_metadata_script_runner"
_POLL = 0.02
# So long may the end of a process take to be seen, and its last lines to be read.
_DRAIN = 0.5
# The socket of the guest's commands. Like `PORTS` it is in the current directory: the relative name
# fits macOS's 104 bytes.
_SOCKET = "control"
# Exit code of systemctl: EXIT_NOTRUNNING of the LSB.
_NOT_RUNNING = 3
# A service that ends by these has ended well (SuccessExitStatus=).
_CLEAN_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}
# So many starts within `start_interval` are too many (DefaultStartLimitBurst=).
_START_BURST = 5
# What a unit leaves behind is killed after so long (DefaultTimeoutStopSec=).
_STOP_SECONDS = 90.0
# The descriptor of the first socket that systemd gives a service (SD_LISTEN_FDS_START).
_FIRST_SOCKET = 3
# journald splits longer lines too (LineMax= in journald.conf).
_LONGEST_LINE = 48 * 1024


class UnitError(ValueError):
    """A unit or command that cannot be run as it is written."""


class System:
    """Runs units until the machine is halted.

    Args:
        config: what the emulator says about this boot, see `Machine`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.environment: dict[str, str] = config["environment"]
        self.halting = False
        self.disk_full = False
        self.units: dict[str, Unit] = {}
        # Held while a unit is loaded and started: then no two have one name, none is started again
        # while the machine halts, and no child ends before `launched` has named it.
        self.changed = threading.Condition()
        self._codes: dict[int, int | None] = {}
        self._serial = os.open(config["serial"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._booted = time.monotonic()
        _thread(self._collect)

    def boot(self) -> None:
        """Start the image's daemons and the start-up script."""
        os.write(self._serial, b"UEFI: Attempting to start image.\n")
        self.print("Linux version 6.1.0-local-cloud-amd64")
        self.print(f"{self.config['name']} boots: {self.config['banner']}")
        for name, command in self.config["daemons"].items():
            unit = Unit(self, f"{name}.service", command, restart="always", restart_sec=1.0)
            # Without an interval no number of restarts is too many: the image never gives up.
            unit.identifier, unit.console, unit.start_interval = name, True, 0.0
            unit.environment = self.config["daemon_environment"]
            self.load(unit).start()
        self._script("startup").start()

    def load(self, unit: "Unit") -> "Unit":
        """Take a unit in; UnitError while another one has its name."""
        with self.changed:
            known = self.units.get(unit.name)
            if known is not None and not known.is_unloaded():
                raise UnitError(
                    f"Failed to start transient service unit: Unit {unit.name} was already loaded "
                    "or has a fragment file."
                )
            self.units[unit.name] = unit
        return unit

    def launched(self, pid: int) -> None:
        """Keep the exit code of a new child, as of no other: it may have an adopted one's id."""
        self._codes[pid] = None

    def wait(self, pid: int) -> int:
        """Wait for the end of a launched child; its exit code, negative for a signal."""
        with self.changed:
            self.changed.wait_for(lambda: self._codes[pid] is not None)
            code = self._codes.pop(pid)
        assert code is not None
        return code

    def print(self, text: str) -> None:
        """Print a line on serial port 1, a file that only grows: seconds since the boot, text."""
        elapsed = time.monotonic() - self._booted
        os.write(self._serial, f"[{elapsed:12.6f}] {text}\n".encode("utf-8", "replace"))

    def halt(self, grace: float) -> NoReturn:
        """End everything: politely for `grace` seconds, then by force; then end itself."""
        with self.changed:
            self.halting = True
        deadline = time.monotonic() + grace
        script = self._script("shutdown")
        if self.config["shutdown_script"] and grace > 0:
            script.start()
        # All at once: background processes of start-up scripts belong to no unit. Those of the
        # shutdown script are told apart last, since it may just have started some.
        asked = self.everything()
        processes.send(asked - {script.pid, *script.members()}, signal.SIGTERM)
        while self.everything() and time.monotonic() < deadline:
            # No order follows this one: there is something to read when the emulator is gone.
            if select.select([sys.stdin], [], [], _POLL)[0]:
                break
        processes.kill_all(self.everything)
        for unit in list(self.units.values()):
            unit.drain()
        self.print("reboot: Power down")
        self.quit()

    def quit(self) -> NoReturn:
        """End everything and the supervisor at once."""
        # Never released: what started now would outlive the machine.
        self.changed.acquire()
        processes.kill_all(self.everything)
        deadline = time.monotonic() + _DRAIN
        # What is left uncollected would stay a zombie where nothing else collects it, as in a
        # container.
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(_POLL / 10)
        os._exit(0)

    def everything(self) -> set[int]:
        """Return all processes of the machine but this one."""
        mark = processes.marked("LOCALCLOUD_MACHINE", self.environment["LOCALCLOUD_MACHINE"])
        return (processes.descendants(os.getpid()) | mark) - {os.getpid()}

    def _script(self, kind: str) -> "Unit":
        command = [os.path.join(self.config["bin"], _RUNNER), kind]
        name = f"google-{kind}-scripts.service"
        return self.load(Unit(self, name, command, kill_mode="process", console=True))

    def _collect(self) -> None:
        """Collect all children, also those that were adopted: a zombie seems to live."""
        while True:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                time.sleep(_POLL)
                continue
            with self.changed:
                if pid in self._codes:
                    self._codes[pid] = os.waitstatus_to_exitcode(status)
                    self.changed.notify_all()


@dataclass
class Unit:
    """A service in a state of systemd's: inactive, activating, active, deactivating or failed.

    Attributes are those of a unit file; times are in seconds.
    """

    system: System
    name: str
    command: list[str]
    restart: str = "no"
    restart_sec: float = 0.1
    start_interval: float = 10.0
    environment: dict[str, str] = field(default_factory=dict)
    identifier: str = ""
    console: bool = False
    kill_mode: str = "control-group"
    collect: bool = False

    def __post_init__(self) -> None:
        self.state = "inactive"
        self.pid = 0
        self.code = 0
        # Marks its processes, also those that left its session: INVOCATION_ID is systemd's own.
        self._invocation = ""
        self._starts: list[float] = []
        self._listener: socket.socket | None = None
        self._follower: threading.Thread | None = None

    def assign(self, assignment: str) -> None:
        """Set a property, as in `systemd-run --property=NAME=VALUE`.

        Raises UnitError: for an unknown property or value.
        """
        name, _, value = assignment.partition("=")
        if name not in _PROPERTIES:
            raise UnitError(f"Unknown assignment: {assignment} (not one of the local machine's)")
        attribute, parse = _PROPERTIES[name]
        try:
            parsed = parse(value)
        except ValueError as error:
            raise UnitError(f"Failed to parse {assignment}: {error}") from None
        if attribute:
            setattr(self, attribute, parsed)

    def is_unloaded(self) -> bool:
        """Return whether its name is free again; that of a failed one only with --collect.

        systemd keeps a failed unit for people to look at.
        """
        over = self.state == "inactive" or (self.state == "failed" and self.collect)
        return over and self._listener is None

    def start(self) -> bool:
        """Start the process and follow it in the background; whether it could be started."""
        with self.system.changed:
            launched = self._launch()
        if launched:
            self._follower = _thread(self._follow)
        return launched

    def listen(self, port: int) -> None:
        """Start the process when a connection to a port of the machine waits, again and again.

        All machines share the host's loopback interface, so a port of a machine is another one on
        the host; the folder `PORTS` says which.
        """
        path = Path(processes.PORTS, str(port))
        if path.exists():
            raise UnitError(f"Failed to create listening socket ({port}): Address already in use")
        listener = self._listener = socket.create_server(("127.0.0.1", 0))
        path.write_text(str(listener.getsockname()[1]), encoding="utf-8")
        _thread(partial(self._serve, listener))

    def join(self) -> None:
        """Wait until it is over; one that waits for its next restart is not."""
        if self._follower is not None:
            self._follower.join()

    def drain(self) -> None:
        """Wait until what was written so far is printed; children may hold the pipe open."""
        if self.pid:
            self._reader.join(_DRAIN)

    def members(self) -> set[int]:
        """Return its processes, also those that outlived the main one."""
        return processes.marked("INVOCATION_ID", self._invocation) if self._invocation else set()

    def _serve(self, listener: socket.socket) -> None:
        # A unit that takes no connection ends again and again; systemd closes its socket then.
        while select.select([listener], [], []) and not self.system.halting and self.start():
            self.join()

    def _launch(self) -> bool:
        now = time.monotonic()
        self._starts = [when for when in self._starts if when > now - self.start_interval] + [now]
        if self.start_interval and len(self._starts) > _START_BURST:
            self._log("Start request repeated too quickly.")
            self._fail("start-limit-hit")
            return False
        self._invocation = uuid.uuid4().hex
        own = {**self.environment, "INVOCATION_ID": self._invocation}
        # Here, not in the child: `pass_fds` keeps the number of a descriptor.
        if self._listener is not None:
            os.dup2(self._listener.fileno(), _FIRST_SOCKET, inheritable=False)
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self._line()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self.system.config["root"],
                env={**self.system.environment, **own},
                start_new_session=True,
                pass_fds=() if self._listener is None else (_FIRST_SOCKET,),
            )
        except OSError as error:
            self._log(f"Failed to execute {self.command[0]}: {error.strerror}")
            self._fail("resources")
            return False
        self.pid, self.state = self._process.pid, "active"
        # The caller holds `changed` until here: `_collect` drops the code of a child that has no
        # entry yet.
        self.system.launched(self.pid)
        self._reader = _thread(partial(self._read, self.pid, self._process.stdout))
        return True

    def _line(self) -> str:
        """Return the shell line that becomes the command."""
        # The default action of SIGXFSZ would end a process whose write fails.
        before = ["trap '' XFSZ"]
        if self.system.disk_full:
            before.append("ulimit -S -f 0")
        if self._listener is not None:
            # As systemd tells a service of its socket: LISTEN_PID is the service's own process.
            before.append("export LISTEN_FDS=1 LISTEN_PID=$$")
        return "; ".join([*before, f"exec {shlex.join(self.command)}"])

    def _read(self, pid: int, pipe: IO[bytes] | None) -> None:
        """Print lines as journald forwards them to a console: `identifier[pid]: text`."""
        assert pipe is not None
        name = self.identifier or os.path.basename(self.command[0])
        with pipe:
            for line in iter(partial(pipe.readline, _LONGEST_LINE), b""):
                if self.console:
                    text = line.decode("utf-8", "replace").rstrip("\r\n")
                    self.system.print(f"{name}[{pid}]: {text}")

    def _follow(self) -> None:
        """Follow the process to its end, and those that are started in its place."""
        for restarts in count(1):
            # Popen must not wait for it once more.
            self.code = self._process.returncode = self.system.wait(self.pid)
            self.drain()
            clean = not self.code or -self.code in _CLEAN_SIGNALS
            if not clean:
                exited = f"exited, status={self.code}"
                how = exited if self.code > 0 else f"killed, signal={-self.code}"
                self._log(f"Main process exited, code={how}")
            if self.kill_mode == "control-group":
                self._end_members()
            if not {"no": False, "always": True, "on-failure": not clean}[self.restart]:
                break
            self.state = "activating"
            time.sleep(self.restart_sec)
            with self.system.changed:
                if self.system.halting:
                    return
                self._log(f"Scheduled restart job, restart counter is at {restarts}.")
                if not self._launch():
                    return
        if clean:
            self.state = "inactive"
        else:
            self._fail("exit-code" if self.code > 0 else "signal")

    def _end_members(self) -> None:
        self.state, deadline = "deactivating", time.monotonic() + _STOP_SECONDS
        processes.send(self.members(), signal.SIGTERM)
        while self.members() and time.monotonic() < deadline:
            time.sleep(_POLL)
        processes.kill_all(self.members)

    def _fail(self, result: str) -> None:
        self.state = "failed"
        self._log(f"Failed with result '{result}'.")

    def _log(self, text: str) -> None:
        self.system.print(f"systemd[1]: {self.name}: {text}")


def _thread(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text

    return parse


def _on_console(text: str) -> bool:
    return _one_of("journal", "journal+console")(text) == "journal+console"


def _optional_file(text: str) -> None:
    if not text.startswith("-"):
        raise ValueError("the local machine has no files of variables")


# By name: the attribute of a unit, if it has any here, and what reads a value.
_PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "Restart": ("restart", _one_of("no", "always", "on-failure")),
    "RestartSec": ("restart_sec", float),
    "StartLimitIntervalSec": ("start_interval", float),
    "EnvironmentFile": ("", _optional_file),
    "StandardOutput": ("console", _on_console),
    # A local unit writes both streams to one pipe, so errors go where standard output goes.
    "StandardError": ("", _on_console),
    "KillMode": ("kill_mode", _one_of("control-group", "process")),
    # What is locked here is the host's, whose limits count.
    "LimitMEMLOCK": ("", _one_of("infinity")),
}


@dataclass
class Answer:
    """What a command prints, its exit code, and what it wants of the emulator."""

    out: str = ""
    err: str = ""
    code: int = 0
    event: str = ""


class _Arguments(argparse.ArgumentParser):
    """An argument parser that raises, so that an unknown option fails by name."""

    def __init__(self, program: str, *flags: str) -> None:
        super().__init__(prog=program, add_help=False, allow_abbrev=False)
        for flag in flags:
            self.add_argument(*flag.split(), action="store_true")

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting: the parser runs in the machine's first process."""
        raise UnitError(f"{self.prog}: {message} (the local machine's {self.prog})")


def _systemd_run(system: System, arguments: list[str], path: str) -> Answer:
    """Run a command as a service, at once or at the first connection.

    The answer comes when it has started, or with --wait when it has ended.
    """
    parser = _Arguments("systemd-run", "--collect -G", "--wait")
    parser.add_argument("--unit", "-u", default=f"run-{uuid.uuid4().hex[:12]}")
    parser.add_argument("--property", "-p", action="append", default=[])
    parser.add_argument("--setenv", "-E", action="append", default=[], type=_pair)
    parser.add_argument("--socket-property", type=_port)
    parser.add_argument("--description")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    parsed = parser.parse_args(arguments)
    if not parsed.command:
        raise UnitError("Command line to execute required.")
    # By the caller's PATH, as systemd-run does; the machine's own programs come first there.
    executable = shutil.which(parsed.command[0], path=path)
    if executable is None:
        raise UnitError(f"Failed to find executable {parsed.command[0]}: No such file or directory")
    command = [os.path.abspath(executable), *parsed.command[1:]]
    unit = Unit(system, _full_name(parsed.unit), command, collect=parsed.collect)
    for assignment in parsed.property:
        unit.assign(assignment)
    unit.environment = dict(parsed.setenv)
    with system.changed:
        system.load(unit)
        if parsed.socket_property:
            unit.listen(parsed.socket_property)
            socket_name = f"{unit.name.removesuffix('.service')}.socket"
            return Answer(err=f"Running socket as unit: {socket_name}\n")
        unit.start()
    announced = f"Running as unit: {unit.name}\n"
    if not parsed.wait:
        return Answer(err=announced, code=int(unit.state == "failed"))
    unit.join()
    # A shell's way to say that a signal ended it, as systemd-run has no number of its own.
    return Answer(err=announced, code=unit.code if unit.code >= 0 else 128 - unit.code)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError
    return name, value


def _port(assignment: str) -> int:
    """Return the port in a socket unit's `ListenStream=PORT`; it has no other properties here."""
    name, _, value = assignment.partition("=")
    if name != "ListenStream" or not 0 < int(value) <= _HIGHEST_PORT:
        raise ValueError
    return int(value)


def _full_name(name: str) -> str:
    # As for systemd, a name without a suffix is a service's.
    if not name.endswith(".service") and "." in name:
        raise UnitError(f"{name}: the local machine has only services (.service)")
    return f"{name.removesuffix('.service')}.service"


def _systemctl(system: System, arguments: list[str], path: str) -> Answer:
    parser = _Arguments("systemctl", "--quiet -q", "--force -f")
    parser.add_argument("verb", choices=("is-active", "poweroff", "halt", "reboot"))
    parser.add_argument("unit", nargs="?")
    # Options may stand between the verb and the unit.
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.verb != "is-active":
        return Answer(event="reboot" if parsed.verb == "reboot" else "poweroff")
    if parsed.unit is None:
        raise UnitError("Too few arguments.")
    unit = system.units.get(_full_name(parsed.unit))
    state = unit.state if unit else "inactive"
    shown = "" if parsed.quiet else f"{state}\n"
    return Answer(shown, code=0 if state == "active" else _NOT_RUNNING)


def _shutdown(system: System, arguments: list[str], path: str) -> Answer:
    parser = _Arguments("shutdown", "--poweroff -P", "--halt -h -H", "--reboot -r")
    parser.add_argument("when", choices=("now", "+0"))
    return Answer(event="reboot" if parser.parse_args(arguments).reboot else "poweroff")


def _end(event: str, system: System, arguments: list[str], path: str) -> Answer:
    _Arguments(event, "--force -f").parse_args(arguments)
    return Answer(event=event)


_PROGRAMS: dict[str, Callable[[System, list[str], str], Answer]] = {
    "systemd-run": _systemd_run,
    "systemctl": _systemctl,
    "shutdown": _shutdown,
    "poweroff": partial(_end, "poweroff"),
    "halt": partial(_end, "poweroff"),
    "reboot": partial(_end, "reboot"),
}


def _control(system: System) -> Callable[[], None]:
    """Listen for the guest's commands (`systemctl` and its like); what serves them for ever."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_SOCKET)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(_SOCKET)
    Path(_SOCKET).chmod(0o600)
    listener.listen(16)

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            _thread(partial(_answer, system, client))

    return serve


def _answer(system: System, client: socket.socket) -> None:
    with client, client.makefile("rb") as sent:
        if not (line := sent.readline()):
            # The caller was killed before it could ask.
            return
        request = json.loads(line)
        try:
            answer = _PROGRAMS[request["program"]](system, request["arguments"], request["path"])
        except UnitError as error:
            answer = Answer(err=f"{error}\n", code=1)
        # A caller that was stopped or killed must not keep the machine from its end.
        client.settimeout(5)
        with contextlib.suppress(OSError):
            client.sendall(json.dumps(asdict(answer)).encode())
    if answer.event:
        # The emulator halts the machine then.
        print(json.dumps({"event": answer.event}), flush=True)


def main() -> None:
    """Boot with the configuration on standard input, obey the emulator's orders, end."""
    # Then daemons that detach themselves stay below this process, and end with the machine.
    processes.adopt_orphans()
    # Keeps the number free for sockets: a shell could not move one there from a number above 9.
    os.dup2(sys.stdin.fileno(), _FIRST_SOCKET, inheritable=False)
    if not (line := sys.stdin.buffer.readline()):
        return
    config = json.loads(line)
    os.chdir(config["run"])
    # Those of an earlier boot.
    shutil.rmtree(processes.PORTS, ignore_errors=True)
    os.mkdir(processes.PORTS)
    system = System(config)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: system.quit())
    _thread(_control(system))
    system.boot()
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if "halt" in order:
            system.halt(order["halt"])
        with system.changed:
            system.disk_full = order["full_disk"]
            processes.fill_disk(system.disk_full, processes.descendants(os.getpid()))
    system.quit()
