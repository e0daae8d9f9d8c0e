"""Processes of a machine: the event loop that runs them, their output, their end, their disk.

Standard library only: a machine's first process must start fast. What only Linux can do (adopting
orphans, dying with the parent, a limit on another process's files) is left out elsewhere.
"""

import contextlib
import ctypes
import os
import sched
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

Callback = Callable[[], None]
_LINUX = sys.platform.startswith("linux")
# Of linux/prctl.h.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# The descriptor of the first socket that systemd gives a service (SD_LISTEN_FDS_START).
_FIRST_SOCKET = 3
_LIBC = ctypes.CDLL(None) if _LINUX else None
_CHUNK = 1 << 16
# journald splits longer lines too (LineMax= in journald.conf).
_LONGEST_LINE = 48 * 1024
_disk_full = False


class Loop:
    """An event loop of one thread: readable files, timers and ended children."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers = sched.scheduler()
        self._children: dict[int, Callable[[int], None]] = {}
        self._running = True
        self._wakeup, write = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(write, False)
        # A signal writes a byte to the pipe, so that it also ends a `select` that has just begun.
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.watch(self._wakeup, self._woken)

    def watch(self, descriptor: int, callback: Callback) -> None:
        """Call back whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def forget(self, descriptor: int) -> None:
        """Stop watching `descriptor`."""
        self._selector.unregister(descriptor)

    def later(self, seconds: float, callback: Callback) -> sched.Event:
        """Call back once, in `seconds`."""
        return self._timers.enter(seconds, 0, callback)

    def cancel(self, timer: sched.Event) -> None:
        """Cancel a timer that may have fired already."""
        with contextlib.suppress(ValueError):
            self._timers.cancel(timer)

    def child(self, pid: int, callback: Callable[[int], None]) -> None:
        """Call back with the exit code of a child, which is negative for a signal."""
        self._children[pid] = callback

    def run(self) -> None:
        """Serve until `stop`."""
        pause: float | None = 0.0
        while self._running:
            for key, _ in self._selector.select(pause):
                callback: Callback = key.data
                callback()
            pause = self._timers.run(blocking=False)

    def stop(self) -> None:
        """Let `run` return after the current callback."""
        self._running = False

    def _woken(self) -> None:
        os.read(self._wakeup, 4096)
        for pid, code in reap():
            callback = self._children.pop(pid, None)
            if callback is not None:
                callback(code)


class Output:
    """Hands each line of a pipe to `line`; closes the pipe when all writers have closed it.

    The pipe is non-blocking: the loop has one thread, and a slow writer must not hold it up.
    """

    def __init__(self, loop: Loop, descriptor: int, line: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._line = line
        self._rest = b""
        self._open = True
        os.set_blocking(descriptor, False)
        loop.watch(descriptor, self.drain)

    def drain(self) -> None:
        """Read what has been written so far."""
        while self._open:
            try:
                data = os.read(self._descriptor, _CHUNK)
            except BlockingIOError:
                return
            if data:
                self._split(data)
            else:
                self._close()

    def _split(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._line(line.rstrip(b"\r").decode("utf-8", "replace"))

    def _close(self) -> None:
        if self._rest:
            self._line(self._rest.decode("utf-8", "replace"))
        self._loop.forget(self._descriptor)
        os.close(self._descriptor)
        self._open = False


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    command: list[str], *, output: int, cwd: str, environment: dict[str, str], listener: int | None
) -> subprocess.Popen[bytes]:
    """Start a unit's process, in a session of its own and with the unit's socket if it has one.

    It dies with the supervisor (PR_SET_PDEATHSIG), even if that is killed.

    Raises OSError: if there is no such program.
    """

    def prepare() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Its default action would end a process whose write fails.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        if _disk_full:
            import resource

            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        if listener is not None:
            os.dup2(listener, _FIRST_SOCKET, inheritable=True)

    if listener is not None:
        # As systemd tells a service of its socket: LISTEN_PID is the service's own process.
        line = f"export LISTEN_FDS=1 LISTEN_PID=$$; exec {shlex.join(command)}"
        command = ["/bin/sh", "-c", line]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=cwd,
        env=environment,
        start_new_session=True,
        preexec_fn=prepare,
        pass_fds=() if listener is None else (_FIRST_SOCKET,),
    )


def fill_disk(full: bool, running: Iterable[int]) -> None:
    """Make the disk full, or not, for processes that run and those that start from now on.

    Only root can fill the disk of one machine, so the kernel forbids its processes to extend any
    file (RLIMIT_FSIZE): they get "File too large" (EFBIG), not "No space left on device" (ENOSPC).
    Pipes, sockets and what the supervisor itself writes keep working.
    """
    global _disk_full
    _disk_full = full
    if not _LINUX:
        return
    import resource

    for pid in running:
        with contextlib.suppress(OSError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))


def descendants(ancestor: int) -> set[int]:
    """Return the living processes below `ancestor`."""
    parents, family = _parents(), {ancestor}
    # Each round goes one generation down.
    while below := {pid for pid, parent in parents if parent in family} - family:
        family |= below
    return family - {ancestor}


def marked(name: str, value: str) -> set[int]:
    """Return the living processes of this user whose environment has `name` set to `value`.

    It finds those that left their process group or lost their parent, too.
    """
    entry = f"{name}={value}"
    if not _LINUX:
        lines = _ps("-axEww", "-o", "pid=,command=")
        return {int(line.split()[0]) for line in lines if f" {entry}" in line}
    found = set()
    for folder in _proc():
        with contextlib.suppress(OSError):
            if entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(find: Callable[[], set[int]], *, seconds: float = 10.0) -> None:
    """Kill what `find` finds until it finds nothing: what dies may have started others just before.

    After `seconds` the rest is left alone: a process that hangs in the kernel can't be killed.
    """
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        send(found, signal.SIGKILL)
        reap()
        time.sleep(0.005)


def reap() -> list[tuple[int, int]]:
    """Collect ended children: (pid, exit code, negative for a signal)."""
    ended: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((found[0], os.waitstatus_to_exitcode(found[1])))
    return ended


def _parents() -> list[tuple[int, int]]:
    if not _LINUX:
        return [(int(pid), int(ppid)) for pid, ppid in map(str.split, _ps("-axo", "pid=,ppid="))]
    found = []
    for folder in _proc():
        with contextlib.suppress(OSError):
            # The command's name, in parentheses, may itself hold spaces and parentheses.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found.append((int(folder.name), int(parent)))
    return found


def _proc() -> list[Path]:
    return [Path("/proc", name) for name in os.listdir("/proc") if name.isdigit()]


def _ps(*arguments: str) -> list[str]:
    listing = subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False)
    return listing.stdout.splitlines()
