"""Time, real or virtual, and the scheduler of what happens later.

All of the emulator asks this clock, never the computer's: a test moves time instead of waiting.
"""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import lru_cache

log = logging.getLogger(__name__)


@lru_cache(maxsize=1024)
def rfc3339(timestamp: float) -> str:
    """Return `timestamp` (seconds since the epoch) as Google's APIs print it."""
    moment = datetime.fromtimestamp(timestamp, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


class Clock:
    """The wall clock; runs each scheduled action when it is due, in a thread of its own."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        # Orders what is due at the same moment; functions themselves can't be compared.
        self._sequence = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._ahead = 0.0

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time() + self._ahead

    def forward(self, seconds: float) -> None:
        """Set the clock ahead; actions that become due run at once."""
        with self._changed:
            self._ahead += seconds
            self._changed.notify()

    def sleep(self, seconds: float) -> None:
        """Delay the calling thread, as a slow or hanging call does."""
        time.sleep(seconds)

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Run `action` when the clock shows `when` (seconds since the epoch)."""
        with self._changed:
            heapq.heappush(self._due, (when, next(self._sequence), action))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="clock", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Forget scheduled actions; the next start schedules them again from the store."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._due or self._due[0][0] > self.now()):
                    delay = self._due[0][0] - self.now() if self._due else None
                    self._changed.wait(delay)
                if self._closed:
                    return
                action = heapq.heappop(self._due)[2]
            # A thread each: some actions wait for a machine, and the others must not.
            threading.Thread(target=_run_logged, args=(action,), daemon=True).start()


class VirtualClock(Clock):
    """A clock for tests: it stands still until it is advanced."""

    def __init__(self, start: float = 1_790_000_000.0) -> None:
        super().__init__()
        self._now = start

    def now(self) -> float:
        """Return virtual seconds since the epoch."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Advance instead of waiting."""
        self.advance(seconds)

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Run `action` once the clock was advanced to `when`."""
        with self._changed:
            heapq.heappush(self._due, (when, next(self._sequence), action))

    def advance(self, seconds: float) -> None:
        """Advance by `seconds` and run, in order, all actions that become due."""
        end = self._now + seconds
        while (action := self._next(end)) is not None:
            _run_logged(action)
        self._now = max(self._now, end)

    def _next(self, end: float) -> Callable[[], object] | None:
        with self._changed:
            if not self._due or self._due[0][0] > end:
                return None
            when, _, action = heapq.heappop(self._due)
            self._now = max(self._now, when)
            return action


def _run_logged(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:
        log.exception("a scheduled action failed")
