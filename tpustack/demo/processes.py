"""Memory and processes of everything that the demo started."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable

import psutil

_MIB = 1 << 20


class Watch:
    """Samples the process trees below some roots, in a thread of its own.

    Args:
        roots: gives the process ids whose descendants count, this process included.
        interval: seconds between two samples.
    """

    def __init__(self, roots: Callable[[], Iterable[int]], interval: float = 0.5) -> None:
        self._roots = roots
        self._interval = interval
        self._seen: set[psutil.Process] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.peak_mib = 0.0
        """Largest sum of resident memory in a sample; shared pages count for each process."""

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and end."""
        self._stop.set()
        self._thread.join()

    def left(self) -> list[psutil.Process]:
        """Return the processes that were seen and still run, this one aside."""
        return [
            process
            for process in self._seen
            if process.is_running()
            and process.status() != psutil.STATUS_ZOMBIE
            and process.pid != psutil.Process().pid
        ]

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._sample()

    def _sample(self) -> None:
        processes: set[psutil.Process] = set()
        for pid in self._roots():
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                processes |= {root, *root.children(recursive=True)}
        resident = 0
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                resident += process.memory_info().rss
        # A new set: `left` may walk the old one in another thread.
        self._seen = self._seen | processes
        self.peak_mib = max(self.peak_mib, resident / _MIB)


def end_children(grace: float) -> None:
    """Interrupt what this process still runs, as Ctrl-C does; kill it after `grace` seconds."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(children, timeout=grace)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(alive, timeout=grace)
