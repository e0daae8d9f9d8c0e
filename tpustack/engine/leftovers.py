"""The engine's processes, known by a mark in their environment.

Its language host, the program and the provider have process groups of their own and outlive an
engine that is killed, but they keep the mark. `make clean`, and the next command that runs the
engine, end what earlier ones have left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import lru_cache

import psutil

from tpustack.recovery.processes import CLOCK, started

MARK = "TPUSTACK_STARTED_BY"
_SECONDS = 5.0


def mark() -> dict[str, str]:
    """Return the variable that marks what this process starts, and what that starts."""
    return {MARK: _own(os.getpid())}


@lru_cache(maxsize=1)
def _own(pid: int) -> str:
    return f"{pid}:{psutil.Process(pid).create_time():.1f}"


def end_own() -> None:
    """End everything that this process has marked."""
    own = mark()[MARK]
    _end(lambda owner: owner == own)


def end_orphans() -> int:
    """End what processes have marked that are dead; return how many there were."""
    return _end(lambda owner: not _lives(owner))


def _end(chosen: Callable[[str], bool]) -> int:
    """End marked processes by their owner, politely and then for sure; return how many there were.

    They are looked for again until there are none: one that ends may have started another.
    """
    count = 0
    while found := _marked(chosen):
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


def _marked(chosen: Callable[[str], bool]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        # Of other people's processes nobody may read it.
        with contextlib.suppress(psutil.Error, OSError):
            owner = process.environ().get(MARK)
            dead = process.status() == psutil.STATUS_ZOMBIE
            if owner and not dead and process.pid != os.getpid() and chosen(owner):
                found.append(process)
    return found


def _lives(owner: str) -> bool:
    """Return whether a process is there, and not another one of the same number."""
    pid, _, born = owner.partition(":")
    with contextlib.suppress(ValueError):
        began = started(int(pid))
        return began is not None and abs(began.timestamp() - float(born)) < CLOCK.total_seconds()
    return False


if __name__ == "__main__":
    end_orphans()
