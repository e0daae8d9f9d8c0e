"""The engine's processes that outlive it: its language host, the program and the provider.

They have process groups of their own. Those of our commands keep a mark in their environment, those
of a plain `pulumi` are known by the address of their engine, where nothing answers once it is dead.
`make clean`, and the next command that runs the engine, end what earlier ones have left.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import psutil

from tpu_training.checkpoints.lease import began, place
from tpustack.project import root

MARK = "TPUSTACK_OWNER"
_SECONDS = 5.0
# The language host and the providers, the queue's (infra/queued/plugin), and the program.
_PLUGIN = re.compile(r"(.*/)?pulumi-(language|resource)-[^/]+|infra\.queued\.serve")
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


def mark() -> dict[str, str]:
    """Return the variable that marks what this process starts, and what that starts."""
    return {MARK: _own(os.getpid())}


@lru_cache(maxsize=1)
def _own(pid: int) -> str:
    return f"{pid}:{_born(pid)}:{place()}"


def end_own() -> None:
    """End everything that this process has marked."""
    own = mark()[MARK]
    _end(lambda process: process.environ().get(MARK) == own)


def end_orphans(checkout: Path) -> int:
    """End what processes have marked that are dead, and what dead engines started on a checkout.

    Returns:
        How many there were.
    """
    checkout = checkout.resolve()
    return _end(lambda process: _is_orphan(process) or _lacks_engine(process, checkout))


def _end(chosen: Callable[[psutil.Process], bool]) -> int:
    """End processes, politely and then for sure; return how many there were.

    They are looked for again until there are none: one that ends may have started another.
    """
    count = 0
    while found := _find(chosen):
        count += len(found)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, stubborn = psutil.wait_procs(found, timeout=_SECONDS)
        for process in stubborn:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(stubborn, timeout=_SECONDS)
    return count


def _find(chosen: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        # Of other people's processes nobody may read it.
        with contextlib.suppress(psutil.Error, OSError):
            dead = process.status() == psutil.STATUS_ZOMBIE
            if not dead and process.pid != os.getpid() and chosen(process):
                found.append(process)
    return found


def _is_orphan(process: psutil.Process) -> bool:
    """Return whether the command that marked a process is dead; in another container: unknown."""
    owner = process.environ().get(MARK, "").split(":", 2)
    return len(owner) == 3 and owner[2] == place() and _born(int(owner[0])) != owner[1]


def _lacks_engine(process: psutil.Process, checkout: Path) -> bool:
    """Return whether a process of an engine works in a checkout and its engine is dead for certain.

    Nothing answers at the engine's address, and no engine is above it: in a container, it may have
    another 127.0.0.1.
    """
    words = process.cmdline()
    ports = [int(found[1]) for word in words if (found := _ADDRESS.fullmatch(word))]
    return (
        bool(ports)
        and any(map(_PLUGIN.fullmatch, words))
        and Path(process.cwd()).is_relative_to(checkout)
        and not any(above.name() == "pulumi" for above in process.parents())
        and all(map(_is_shut, ports))
    )


def _is_shut(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_SECONDS).close()
    except ConnectionRefusedError:
        return True
    return False


def _born(pid: int) -> str:
    """Return when a process began, by a clock that can't be set; nothing if none lives."""
    if ticks := began(pid):
        return ticks
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.create_time():.1f}"
    return ""


if __name__ == "__main__":
    end_orphans(root())
