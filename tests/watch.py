"""Which processes a command has started, how much memory they take, and which it leaves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

import psutil

_MIB = 1 << 20


class Watch(threading.Thread):
    """Samples the process trees below some roots: their memory, and what of them still runs.

    Args:
        roots: gives the process ids whose descendants count, this process included.
        interval: seconds between two samples.
    """

    def __init__(self, roots: Callable[[], Iterable[int]], interval: float = 0.5) -> None:
        super().__init__(daemon=True)
        self._roots, self._interval = roots, interval
        self._seen: set[psutil.Process] = set()
        self._stopped = threading.Event()
        self.peak_mib = 0.0
        """Largest sum of resident memory in a sample; shared pages count for each process."""

    def run(self) -> None:
        """Take samples until it is stopped."""
        while not self._stopped.wait(self._interval):
            self._sample()

    def stop(self) -> None:
        """Wait for the last sample."""
        self._stopped.set()
        self.join()

    def left(self) -> list[psutil.Process]:
        """Return the processes that were seen and still run, this one aside."""
        return [each for each in self._seen - {psutil.Process()} if _lives(each)]

    def _sample(self) -> None:
        processes: set[psutil.Process] = set()
        resident = 0
        for pid in self._roots():
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                processes |= {root, *root.children(recursive=True)}
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                resident += process.memory_info().rss
        # A new set: `left` may walk the old one in another thread.
        self._seen = self._seen | processes
        self.peak_mib = max(self.peak_mib, resident / _MIB)


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
