"""Ends a process that TensorFlow does not come back to: a worker that hangs, a SIGTERM unheard.

Python runs signal handlers in the main thread, between its own instructions. While TensorFlow waits
there for a worker that neither answers nor closes the connection, nothing of the kind happens, for
hours (tensorflow#38190). So a thread of its own watches, and ends the process the hard way: what is
to be kept is in the last checkpoint.
"""

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from tpu_training.errors import EXIT_FAILURE, EXIT_START_AGAIN
from tpu_training.errors.catalog import find_known_error
from tpu_training.loop.callbacks import Callback, LoopReport

# A preempted VM has 30 seconds until it is switched off.
# https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
_GRACE_SECONDS = 25.0
_LONGEST_WAIT = 3600.0
# How much later the timer is itself taken for stuck: TensorFlow may wait without letting other
# threads of Python run. faulthandler's thread needs no permission; its message is a traceback.
_BACKSTOP_SECONDS = 5.0
_STDERR = 2


def _end(message: str, code: int) -> NoReturn:
    """Without clean-up: that would wait for the very thread that hangs."""
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


class HangTimer(Callback):
    """Watches for progress from `watch` on, and for SIGTERM from `install` on."""

    def __init__(
        self,
        end: Callable[[str, int], None] = _end,
        grace_seconds: float = _GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call `end` with a message and an exit code when it is time by `clock`."""
        self._clock = clock
        self._end = end
        self._grace_seconds = grace_seconds
        self._timeout = 0.0
        self._deadline: float | None = None
        self._killed_at: float | None = None
        self._installed = False
        self._bell, self._ringer = socket.socketpair()

    def install(self) -> None:
        """Hear SIGTERM from now on; main thread only."""
        self._installed = True
        self._ringer.setblocking(False)
        # The C part of a signal's handling, which also works while the main thread is busy.
        signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._run, name="hang-timer", daemon=True).start()

    def watch(self, timeout: float, first: float = 0.0) -> None:
        """Demand a sign of progress every `timeout` seconds; the first one has `first` more."""
        self._timeout = timeout
        self._set_deadline(first)
        self._ringer.send(b"\0")  # The thread may be waiting for nothing at all.

    def reset(self) -> None:
        """There was progress."""
        self._set_deadline(0.0)

    def between_loops(self, step: int, report: LoopReport) -> None:
        """A loop is progress."""
        self.reset()

    def _set_deadline(self, more: float) -> None:
        self._deadline = self._clock() + self._timeout + more if self._timeout else None
        if self._installed and self._timeout:
            latest = self._timeout + more + _BACKSTOP_SECONDS
            faulthandler.dump_traceback_later(latest, exit=True, file=_STDERR)

    def _run(self) -> None:
        while not self.look():
            ends = [end for end in (self._deadline, self._killed_at) if end is not None]
            wait = min([_LONGEST_WAIT, *(end - self._clock() for end in ends)])
            ready, _, _ = select.select([self._bell], [], [], max(0.0, wait))
            if ready and signal.SIGTERM in self._bell.recv(64) and self._killed_at is None:
                self._killed_at = self._clock() + self._grace_seconds

    def look(self) -> bool:
        """End the process when it is time; return whether it was."""
        now = self._clock()
        if self._killed_at is not None and now >= self._killed_at:
            self._end(
                f"training interrupted: SIGTERM came {self._grace_seconds:.0f} s ago and "
                "TensorFlow did not come back; the last checkpoint stays, start again to go on",
                EXIT_START_AGAIN,
            )
        elif self._deadline is not None and now >= self._deadline:
            known = find_known_error("no loop of steps was finished for")
            assert known
            self._end(
                f"training failed: {known.cause}: {known.cure}; see {known.link} [no loop of steps "
                f"was finished for {self._timeout:.0f} s (--hang_timeout)]",
                EXIT_FAILURE,
            )
        else:
            return False
        return True
