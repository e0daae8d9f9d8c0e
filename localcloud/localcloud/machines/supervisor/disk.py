"""The machine's disk as its processes see it: full, or not.

Nobody but root can fill a disk of a machine alone, so the kernel forbids its processes to write any
file further (RLIMIT_FSIZE): they get "File too large" (EFBIG), not "No space left on device"
(ENOSPC). Pipes, sockets and what the supervisor itself writes go on working.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterable

_full = False


def fill(full: bool, running: Iterable[int]) -> None:
    """Make the disk full, or as it was, for processes that run and those that start from now on."""
    global _full
    _full = full
    if not sys.platform.startswith("linux"):
        return
    import resource

    for pid in running:
        with contextlib.suppress(OSError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))


def prepare() -> None:
    """Let a process that is about to start see the disk as it is."""
    # Its default action would end a process whose write fails.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if _full:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
