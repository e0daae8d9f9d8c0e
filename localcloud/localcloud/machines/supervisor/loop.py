"""An event loop of one thread: readable files, timers and ended children."""

from __future__ import annotations

import contextlib
import os
import sched
import selectors
import signal
from collections.abc import Callable

from localcloud.machines.supervisor.processes import reap

Callback = Callable[[], None]


class Loop:
    """Calls back, one thing after the other, until it is stopped."""

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
        """Watch `descriptor` no longer."""
        self._selector.unregister(descriptor)

    def later(self, seconds: float, callback: Callback) -> sched.Event:
        """Call back once, in `seconds`."""
        return self._timers.enter(seconds, 0, callback)

    def cancel(self, timer: sched.Event) -> None:
        """Call back no more, if that is still to come."""
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
        """Let `run` return after the callback that runs now."""
        self._running = False

    def _woken(self) -> None:
        os.read(self._wakeup, 4096)
        for pid, code in reap():
            callback = self._children.pop(pid, None)
            if callback is not None:
                callback(code)
