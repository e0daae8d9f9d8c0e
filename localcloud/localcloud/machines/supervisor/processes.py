"""Which processes a machine has, also those that left their process group or lost their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from localcloud.machines.supervisor import disk

_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# The descriptor of the first socket that systemd gives a service (SD_LISTEN_FDS_START).
_FIRST_SOCKET = 3
_LIBC = ctypes.CDLL(None) if _LINUX else None


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Let the kernel kill the calling process when its parent ends (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _with_socket(command: list[str]) -> list[str]:
    """Return a command that learns of its socket as from systemd: LISTEN_PID is its process."""
    return ["/bin/sh", "-c", f"export LISTEN_FDS=1 LISTEN_PID=$$; exec {shlex.join(command)}"]


def start(
    command: list[str], *, output: int, cwd: str, environment: dict[str, str], listener: int | None
) -> subprocess.Popen[bytes]:
    """Start a unit's process, in a session of its own and with the unit's socket if it has one.

    Raises:
        OSError: when there is no such program.
    """

    def prepare() -> None:
        die_with_parent()
        disk.prepare()
        if listener is not None:
            os.dup2(listener, _FIRST_SOCKET, inheritable=True)

    return subprocess.Popen(
        command if listener is None else _with_socket(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=cwd,
        env=environment,
        start_new_session=True,
        preexec_fn=prepare,
        pass_fds=() if listener is None else (_FIRST_SOCKET,),
    )


def descendants(ancestor: int) -> set[int]:
    """Return the living processes below `ancestor`."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    pending = list(children.get(ancestor, []))
    while pending:
        pid = pending.pop()
        found.add(pid)
        pending += children.get(pid, [])
    return found


def marked(name: str, value: str) -> set[int]:
    """Return the living processes of this user whose environment has `name` set to `value`."""
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
    """Kill what `find` finds until it finds nothing, children of children included."""
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        send(found, signal.SIGKILL)
        reap()
        time.sleep(0.005)


def reap() -> list[tuple[int, int]]:
    """Collect ended children: (pid, exit code, negative for a signal)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


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
