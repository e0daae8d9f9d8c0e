"""Service units as systemd has them: what they run, their restarts, their end, their sockets.

Names, defaults, states and the words on the console are systemd's: systemd.service(5),
systemd.exec(5), systemd.kill(5), systemd.socket(5). What start-up scripts don't use is refused, so
that no property is taken and then ignored.
"""

import os
import re
import sched
import shlex
import signal
import socket
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from localcloud.machines import processes

PORTS = "ports"
"""The folder that tells at which port of the host each port of a machine is."""
_HIGHEST_PORT = 65535
# A service that ends by these has ended well (SuccessExitStatus=).
_CLEAN_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}
# EXIT_EXEC: the program could not be started.
_EXEC_FAILED = 203
_POLL = 0.02
# So many starts within `start_interval` are too many (DefaultStartLimitBurst=).
_START_BURST = 5


class UnitError(ValueError):
    """A unit that cannot be run as it is written."""


@dataclass
class UnitSpec:
    """A service unit; times are in seconds."""

    name: str
    command: list[str]
    restart: str = "no"
    restart_sec: float = 0.1
    start_interval: float = 10.0
    timeout_stop: float = 90.0
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = ""
    identifier: str = ""
    console: bool = False
    kill_mode: str = "control-group"
    collect: bool = False

    def assign(self, assignment: str) -> None:
        """Set a property, as in `systemd-run --property=NAME=VALUE`.

        Raises UnitError: for an unknown property or value.
        """
        name, separator, value = assignment.partition("=")
        if not separator:
            raise UnitError(f"Not an assignment: {assignment}")
        if name not in _PROPERTIES:
            raise UnitError(f"Unknown assignment: {name}={value} (not one of the local machine's)")
        attribute, parse = _PROPERTIES[name]
        try:
            parsed = parse(value)
        except ValueError as error:
            raise UnitError(f"Failed to parse {name}={value}: {error}") from None
        if attribute == "environment":
            self.environment.update(parsed)
        elif attribute:
            setattr(self, attribute, parsed)


def _seconds(text: str) -> float:
    span = re.fullmatch(r"([\d.]+)\s*(ms|s|sec|min|h|)", text.strip())
    if not span:
        raise ValueError("not a time span such as 5, 500ms or 2min")
    return float(span[1]) * {"ms": 1e-3, "min": 60, "h": 3600}.get(span[2], 1)


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text

    return parse


def _on_console(text: str) -> bool:
    return _one_of("journal", "journal+console")(text) == "journal+console"


def _environment_file(text: str) -> dict[str, str]:
    """Return the variables in a file; one behind a dash may be missing."""
    path = Path(text.removeprefix("-"))
    if text.startswith("-") and not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(error.strerror) from None
    kept = [line for line in lines if line.strip() and line.strip()[0] not in "#;"]
    pairs = [word.partition("=") for word in shlex.split("\n".join(kept))]
    if wrong := [name for name, separator, _ in pairs if not name or not separator]:
        raise ValueError(f"{wrong[0]} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}


_PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "Restart": ("restart", _one_of("no", "always", "on-failure")),
    "RestartSec": ("restart_sec", _seconds),
    "StartLimitIntervalSec": ("start_interval", _seconds),
    "TimeoutStopSec": ("timeout_stop", _seconds),
    "EnvironmentFile": ("environment", _environment_file),
    "StandardOutput": ("console", _on_console),
    # A local unit writes both streams to one pipe, so errors go where standard output goes.
    "StandardError": ("", _on_console),
    "KillMode": ("kill_mode", _one_of("control-group", "process")),
    # What is locked here is the host's, whose limits count.
    "LimitMEMLOCK": ("", _one_of("infinity")),
}


class Console:
    """Serial port 1, a file that only grows.

    Lines look as journald forwards them to a console: `[   12.345678] identifier[pid]: text`, in
    seconds since the boot.
    """

    def __init__(self, serial: Path) -> None:
        self._serial = os.open(serial, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._booted = time.monotonic()

    def firmware(self, text: str) -> None:
        """Print a line as firmware does, before there is a clock."""
        os.write(self._serial, f"{text}\n".encode())

    def kernel(self, text: str) -> None:
        """Print a line that no process wrote."""
        elapsed = time.monotonic() - self._booted
        os.write(self._serial, f"[{elapsed:12.6f}] {text}\n".encode("utf-8", "replace"))

    def log(self, identifier: str, pid: int, text: str) -> None:
        """Print a line of a process."""
        self.kernel(f"{identifier}[{pid}]: {text}")


class Unit:
    """A unit in one of systemd's states: inactive, activating, active, deactivating, failed.

    Args:
        spec: what to run.
        loop: calls back when the process ends.
        console: takes the output.
        environment: what every process of the machine gets.
        folder: working directory of units that name none.
    """

    def __init__(
        self,
        spec: UnitSpec,
        loop: processes.Loop,
        console: Console,
        environment: dict[str, str],
        folder: str,
    ) -> None:
        self.spec = spec
        self.state = "inactive"
        self.result = "success"
        self.code: int | None = None
        self.pid = 0
        self.listener: int | None = None
        """The socket that its process takes connections from; None for most units."""
        self._loop = loop
        self._console = console
        self._environment = environment
        self._folder = folder
        self._restarts = 0
        # Marks its processes, also those that left its session: INVOCATION_ID is systemd's own.
        self._invocation = ""
        self._starts: deque[float] = deque()
        self._stopping = False
        self._restart: sched.Event | None = None
        self._kill: sched.Event | None = None
        self._output: processes.Output | None = None
        self._waiting: list[tuple[processes.Callback, bool]] = []

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.state in ("active", "activating"):
            return
        self._stopping = False
        self._restarts = 0
        self._launch()

    def stop(self, timeout: float = float("inf")) -> None:
        """End all its processes: politely, and by force after its own timeout or `timeout`."""
        self._stopping = True
        if self._restart is not None:
            self._loop.cancel(self._restart)
            self._restart = None
            self._settle()
        elif self.pid:
            self.state = "deactivating"
            processes.send(self._targets(), signal.SIGTERM)
            self._kill = self._loop.later(min(self.spec.timeout_stop, timeout), self._kill_now)

    def when_settled(self, callback: processes.Callback, *, ended: bool = False) -> None:
        """Call back when the unit neither starts nor stops, or with `ended` when it is over.

        A unit that waits for its next restart is still starting.
        """
        self._waiting.append((callback, ended))
        self._tell()

    def members(self) -> set[int]:
        """Return its processes, also those that outlived the main one."""
        return processes.marked("INVOCATION_ID", self._invocation) if self._invocation else set()

    def drain(self) -> None:
        """Log what its processes have written so far."""
        if self._output is not None:
            self._output.drain()

    def _launch(self) -> None:
        if self._too_often():
            self._log("Start request repeated too quickly.")
            self._fail("start-limit-hit")
            return
        self._invocation = uuid.uuid4().hex
        read, write = os.pipe()
        own = {**self.spec.environment, "INVOCATION_ID": self._invocation}
        environment = {**self._environment, **own}
        try:
            process = processes.start(
                _expanded(self.spec.command, environment),
                output=write,
                cwd=self.spec.directory or self._folder,
                environment=environment,
                listener=self.listener,
            )
        except OSError as error:
            os.close(read)
            self._log(f"Failed to execute {self.spec.command[0]}: {error.strerror}")
            self.state = "activating"
            self._loop.later(0, lambda: self._ended(_EXEC_FAILED))
            return
        finally:
            os.close(write)
        self.pid, self.code, self.state = process.pid, None, "active"
        output = self._output = processes.Output(self._loop, read, partial(self._line, process.pid))
        # The loop collects the child; Popen must not wait for it once more.
        self._loop.child(process.pid, partial(self._collected, process, output))
        self._tell()

    def _too_often(self) -> bool:
        """Count a start; return whether there were too many (StartLimitIntervalSec=)."""
        now = time.monotonic()
        while self._starts and self._starts[0] <= now - self.spec.start_interval:
            self._starts.popleft()
        if self.spec.start_interval and len(self._starts) >= _START_BURST:
            return True
        self._starts.append(now)
        return False

    def _line(self, pid: int, text: str) -> None:
        if self.spec.console:
            name = self.spec.identifier or os.path.basename(self.spec.command[0])
            self._console.log(name, pid, text)

    def _collected(
        self, process: subprocess.Popen[bytes], output: processes.Output, code: int
    ) -> None:
        process.returncode = code
        output.drain()
        self._ended(code)

    def _ended(self, code: int) -> None:
        self.code, self.pid = code, 0
        if not self._clean():
            how = f"exited, status={code}" if code >= 0 else f"killed, signal={-code}"
            self._log(f"Main process exited, code={how}")
        if self.spec.kill_mode == "control-group" and (rest := self.members()):
            self.state = "deactivating"
            processes.send(rest, signal.SIGTERM)
            if self._kill is None:
                self._kill = self._loop.later(self.spec.timeout_stop, self._kill_now)
            self._await_members()
        else:
            self._settle()

    def _await_members(self) -> None:
        if self.members():
            self._loop.later(_POLL, self._await_members)
        else:
            self._settle()

    def _settle(self) -> None:
        if self._kill is not None:
            self._loop.cancel(self._kill)
            self._kill = None
        clean = self._clean()
        wanted = {"no": False, "always": True, "on-failure": not clean}[self.spec.restart]
        if wanted and not self._stopping:
            self.state = "activating"
            self._restart = self._loop.later(self.spec.restart_sec, self._again)
        elif self._stopping or clean:
            self.state, self.result = "inactive", "success"
        else:
            self._fail("exit-code" if (self.code or 0) >= 0 else "signal")
        self._tell()

    def _again(self) -> None:
        self._restart = None
        self._restarts += 1
        self._log(f"Scheduled restart job, restart counter is at {self._restarts}.")
        self._launch()

    def _clean(self) -> bool:
        return not self.code or -self.code in _CLEAN_SIGNALS

    def _fail(self, result: str) -> None:
        self.state, self.result = "failed", result
        self._log(f"Failed with result '{result}'.")
        self._tell()

    def _targets(self) -> set[int]:
        return {self.pid} if self.spec.kill_mode == "process" else {self.pid, *self.members()}

    def _kill_now(self) -> None:
        self._log("State 'stop-sigterm' timed out. Killing.")
        processes.send(self._targets() - {0}, signal.SIGKILL)

    def _tell(self) -> None:
        if self.state in ("activating", "deactivating"):
            return
        settled = [w for w in self._waiting if not w[1] or self.state != "active"]
        self._waiting = [w for w in self._waiting if w not in settled]
        for callback, _ in settled:
            callback()

    def _log(self, text: str) -> None:
        self._console.log("systemd", 1, f"{self.spec.name}: {text}")


def _expanded(command: list[str], environment: dict[str, str]) -> list[str]:
    """Return `command` with `${NAME}` replaced, `$NAME` split into words and `$$` as `$`."""

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1], "") if found[1] else "$"

    words: list[str] = []
    for word in command:
        if whole := re.fullmatch(r"\$(\w+)", word):
            words += environment.get(whole[1], "").split()
        else:
            words.append(re.sub(r"\$\$|\$\{(\w+)\}", value, word))
    return words


class Socket:
    """One TCP port of the machine, handed to a unit when the first connection waits.

    All machines share the host's loopback interface, so a port of a machine is another one on the
    host; the folder `PORTS` says which.

    Args:
        loop: tells when a connection waits.
        port: as the guest counts.
        unit: takes the connections; it is started again if it has ended.
    """

    def __init__(self, loop: processes.Loop, port: int, unit: Unit) -> None:
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

    Raises UnitError: for every other property, and for addresses that are not a port alone.
    """
    name, _, value = assignment.partition("=")
    if name != "ListenStream" or not value.isdigit() or not 0 < int(value) <= _HIGHEST_PORT:
        raise UnitError(f"{assignment}: the local machine has only ListenStream=PORT")
    return int(value)


def forget_ports() -> None:
    """Forget the ports of an earlier boot."""
    for path in Path(PORTS).glob("*"):
        path.unlink()
