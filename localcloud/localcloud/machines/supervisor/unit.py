"""A service unit: its process, its output, its restarts and its end, as systemd has them."""

from __future__ import annotations

import os
import sched
import signal
import subprocess
import time
import uuid
from collections import deque
from functools import partial

from localcloud.machines.supervisor import processes
from localcloud.machines.supervisor.console import Console
from localcloud.machines.supervisor.loop import Callback, Loop
from localcloud.machines.supervisor.output import Output
from localcloud.machines.supervisor.unit_file import UnitSpec, expand

_CLEAN_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}
_EXEC_FAILED = 203
_POLL = 0.02


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
        self, spec: UnitSpec, loop: Loop, console: Console, environment: dict[str, str], folder: str
    ) -> None:
        self.spec = spec
        self.state = "inactive"
        self.result = "success"
        self.code: int | None = None
        self.pid = 0
        self.restarts = 0
        self.listener: int | None = None
        """The socket that its process takes connections from; None for most units."""
        self._loop = loop
        self._console = console
        self._environment = environment
        self._folder = folder
        self._invocation = ""
        self._starts: deque[float] = deque()
        self._stopping = False
        self._restart: sched.Event | None = None
        self._kill: sched.Event | None = None
        self._output: Output | None = None
        self._waiting: list[tuple[Callback, bool]] = []

    @property
    def identifier(self) -> str:
        """The prefix of its lines."""
        return self.spec.identifier or os.path.basename(self.spec.command[0])

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.state in ("active", "activating") and self._restart is None:
            return
        self._cancel_restart()
        self._stopping = False
        self.restarts = 0
        self._launch()

    def stop(self, timeout: float = float("inf")) -> None:
        """End all its processes: politely, and by force after its own timeout or `timeout`."""
        self._stopping = True
        if self._restart is not None:
            self._cancel_restart()
            self._settle()
            return
        if not self.pid:
            self._end_if_quiet()
            return
        self.state = "deactivating"
        processes.send(self._targets(), self.spec.kill_signal)
        self._kill_after(min(self.spec.timeout_stop, timeout))

    def reset(self) -> None:
        """Forget a failure and the count of starts."""
        self._starts.clear()
        if self.state == "failed":
            self.state, self.result = "inactive", "success"

    def when_settled(self, callback: Callback, *, ended: bool = False) -> None:
        """Call back when the unit neither starts nor stops, or with `ended` when it is over.

        A unit that waits for its next restart is still starting.
        """
        self._waiting.append((callback, ended))
        self._tell()

    def members(self) -> set[int]:
        """Return its processes, also those that outlived the main one."""
        if not self._invocation:
            return set()
        return processes.marked("INVOCATION_ID", self._invocation)

    def drain(self) -> None:
        """Log what its processes have written until now."""
        if self._output is not None:
            self._output.drain()

    def _launch(self) -> None:
        now = time.monotonic()
        while self._starts and self._starts[0] <= now - self.spec.start_interval:
            self._starts.popleft()
        if self.spec.start_interval and len(self._starts) >= self.spec.start_burst > 0:
            self._log("Start request repeated too quickly.")
            self._fail("start-limit-hit")
            return
        self._starts.append(now)
        self._invocation = uuid.uuid4().hex
        read, write = os.pipe()
        environment = {
            **self._environment,
            **self.spec.environment,
            "INVOCATION_ID": self._invocation,
        }
        try:
            process = processes.start(
                expand(self.spec.command, environment),
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
        self.pid, self.code = process.pid, None
        self.state = "activating" if self.spec.type == "oneshot" else "active"
        output = self._output = Output(self._loop, read, partial(self._line, process.pid))
        # The loop collects the child; Popen must not wait for it once more.
        self._loop.child(process.pid, partial(self._collected, process, output))
        self._tell()

    def _line(self, pid: int, text: str) -> None:
        name, console = self.spec.name, self.spec.console
        self._console.log(name, self.identifier, pid, text, console=console)

    def _collected(self, process: subprocess.Popen[bytes], output: Output, code: int) -> None:
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
            processes.send(rest, self.spec.kill_signal)
            if self._kill is None:
                self._kill_after(self.spec.timeout_stop)
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
        if not self._stopping and self._wants_restart():
            self.state = "activating"
            self._restart = self._loop.later(self.spec.restart_sec, self._again)
        elif self._stopping or self._clean():
            stays = self.spec.remain and not self._stopping
            self.state, self.result = ("active" if stays else "inactive"), "success"
        else:
            self._fail("exit-code" if (self.code or 0) >= 0 else "signal")
        self._tell()

    def _again(self) -> None:
        self._restart = None
        self.restarts += 1
        self._log(f"Scheduled restart job, restart counter is at {self.restarts}.")
        self._launch()

    def _wants_restart(self) -> bool:
        code = self.code or 0
        if code in self.spec.restart_prevent:
            return False
        clean = self._clean()
        return {
            "no": False,
            "always": True,
            "on-success": clean,
            "on-failure": not clean,
            "on-abnormal": not clean and code < 0,
            "on-abort": not clean and code < 0,
        }[self.spec.restart]

    def _clean(self) -> bool:
        code = self.code or 0
        if code == 0 or code in self.spec.success:
            return True
        return self.spec.type != "oneshot" and -code in _CLEAN_SIGNALS

    def _fail(self, result: str) -> None:
        self.state, self.result = "failed", result
        self._log(f"Failed with result '{result}'.")
        self._tell()

    def _targets(self) -> set[int]:
        return {self.pid} if self.spec.kill_mode == "process" else {self.pid, *self.members()}

    def _kill_after(self, seconds: float) -> None:
        if seconds == float("inf"):
            return
        self._kill = self._loop.later(seconds, self._kill_now)

    def _kill_now(self) -> None:
        self._log("State 'stop-sigterm' timed out. Killing.")
        processes.send(self._targets() - {0}, signal.SIGKILL)

    def _end_if_quiet(self) -> None:
        if self.state == "active":
            self.state = "inactive"
        self._tell()

    def _cancel_restart(self) -> None:
        if self._restart is not None:
            self._loop.cancel(self._restart)
            self._restart = None

    def _tell(self) -> None:
        if self.state in ("activating", "deactivating"):
            return
        told = [w for w in self._waiting if not w[1] or self.state != "active"]
        self._waiting = [w for w in self._waiting if w not in told]
        for callback, _ in told:
            callback()

    def _log(self, text: str) -> None:
        self._console.manager(self.spec.name, f"{self.spec.name}: {text}")
