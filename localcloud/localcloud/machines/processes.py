"""Processes of this computer that belong to a machine: found, signalled, killed, out of disk.

Standard library only: a machine's first process must start fast. What only Linux can do (adopting
orphans, a limit on another process's files) is left out elsewhere.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PORTS = "ports"
"""The folder that tells at which port of the host each port of a machine is."""
_LINUX = sys.platform.startswith("linux")
# Of linux/prctl.h.
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux)."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fill_disk(full: bool, running: Iterable[int]) -> None:
    """Make the disk full, or not, for processes that run.

    Only root can fill the disk of one machine, so the kernel forbids its processes to extend any
    file (RLIMIT_FSIZE): they get "File too large" (EFBIG), not "No space left on device" (ENOSPC).
    Pipes, sockets and what the supervisor itself writes keep working.
    """
    if not _LINUX:
        return
    import resource

    for pid in running:
        with contextlib.suppress(OSError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))


def living() -> set[int]:
    """Return all processes of this computer but zombies, which have ended."""
    return {pid for pid, _ in _parents()}


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
    """Send a signal to each process that still lives.

    Each by its own id: units are sessions of their own, so that no group has them all.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(find: Callable[[], set[int]]) -> None:
    """Kill what `find` finds until it finds nothing: what dies may have started others just before.

    After 10 s the rest is left alone: a process that hangs in the kernel can't be killed.
    """
    deadline = time.monotonic() + 10.0
    while (found := find()) and time.monotonic() < deadline:
        send(found, signal.SIGKILL)
        time.sleep(0.005)


def _parents() -> list[tuple[int, int]]:
    if not _LINUX:
        rows = map(str.split, _ps("-axo", "pid=,ppid=,stat="))
        return [(int(pid), int(parent)) for pid, parent, state in rows if state[0] != "Z"]
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
