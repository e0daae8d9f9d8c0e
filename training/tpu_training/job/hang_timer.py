"""End a process in which TensorFlow hangs, so that it can be restarted from its last checkpoint.

Python runs signal handlers in the main thread, between bytecode instructions. While TensorFlow
waits there for a worker that neither answers nor closes the connection, no handler runs, for hours
(tensorflow#38190). A separate thread therefore watches for progress and for SIGTERM, and exits the
process without clean-up.
"""

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NoReturn

from tpu_training.errors import EXIT_FAILURE, EXIT_START_AGAIN
from tpu_training.errors.catalog import find_known_error
from tpu_training.job.supervision import Pulse, write_outcome
from tpu_training.job.worker_watch import watching
from tpu_training.loop.callbacks import Callback, LoopReport

# A preempted VM has 30 seconds until it stops.
# https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
_GRACE_SECONDS = 25.0
_LONGEST_WAIT = 3600.0
# After this many more seconds the timer itself counts as stuck: TensorFlow may hold the GIL while
# it waits. faulthandler's thread does not need the GIL; its message is a traceback.
_BACKSTOP_SECONDS = 5.0
_STDERR = 2


def _end(message: str, code: int, cause: str = "hung") -> NoReturn:
    """Exit without clean-up, which would wait for the hanging thread."""
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    write_outcome(code, cause if code == EXIT_FAILURE else "", message)
    os._exit(code)


def _end_without_worker(why: str) -> NoReturn:
    known = find_known_error("UnavailableError")
    assert known
    _end(f"training failed: {known.cause}: {known.cure} [{why}]", EXIT_FAILURE, known.id)


class HangTimer(Callback):
    """Watches for SIGTERM once installed, and for progress once `watch` is called."""

    def __init__(
        self,
        end: Callable[[str, int], None] = _end,
        grace_seconds: float = _GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call `end` with a message and an exit code when the time by `clock` is up."""
        self._clock = clock
        self._end = end
        self._grace_seconds = grace_seconds
        self._timeout = 0.0
        self._deadline: float | None = None
        self._killed_at: float | None = None
        self._ringer: socket.socket | None = None
        self._undo = ExitStack()
        self._step: int | None = None
        self.saved_step: Callable[[], int] = lambda: 0
        """Returns the step of the last whole checkpoint."""
        self._pulse = Pulse()

    def install(self, *, signals: bool = True) -> None:
        """Start watching; for SIGTERM, too, with `signals`, which takes the main thread."""
        bell, self._ringer = socket.socketpair()
        self._ringer.setblocking(False)
        thread = threading.Thread(target=self._run, args=(bell,), name="hang-timer", daemon=True)
        thread.start()
        self._undo.callback(thread.join)
        self._undo.callback(self._ringer.close)
        if signals:
            # The C-level handler writes to this socket even while the main thread is busy.
            before = signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)
            self._undo.callback(signal.set_wakeup_fd, before)
        self._undo.callback(faulthandler.cancel_dump_traceback_later)

    def uninstall(self) -> None:
        """Stop watching, in a process that lives on."""
        self._undo.close()
        self._ringer = None

    def watch(self, timeout: float, first: float = 0.0) -> None:
        """Expect progress every `timeout` seconds, the first time after `first` more seconds."""
        self._timeout = timeout
        self._set_deadline(first)
        if self._ringer:
            self._ringer.send(b"\0")  # Wake the thread, which may be waiting without a deadline.

    def watch_workers(self, workers: Sequence[str]) -> None:
        """End the process if one of the `workers` dies and TensorFlow does not notice."""
        if self._ringer and workers:
            self._undo.enter_context(watching(workers, _end_without_worker))

    def reset(self) -> None:
        """Record progress."""
        self._set_deadline(0.0)

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Record a finished loop as progress."""
        self._step = step
        self.reset()

    def _set_deadline(self, more: float) -> None:
        self._deadline = self._clock() + self._timeout + more if self._timeout else None
        self._pulse.beat(self._timeout and self._timeout + more + _BACKSTOP_SECONDS, self._step)
        if self._ringer and self._timeout:
            latest = self._timeout + more + _BACKSTOP_SECONDS
            faulthandler.dump_traceback_later(latest, exit=True, file=_STDERR)

    def _run(self, bell: socket.socket) -> None:
        """Look until the time is up or the other end of `bell` is closed."""
        with bell:
            while not self.look():
                ends = [end for end in (self._deadline, self._killed_at) if end is not None]
                wait = min([_LONGEST_WAIT, *(end - self._clock() for end in ends)])
                if not select.select([bell], [], [], max(0.0, wait))[0]:
                    continue
                if not (heard := bell.recv(64)):
                    return
                if signal.SIGTERM in heard and self._killed_at is None:
                    self._killed_at = self._clock() + self._grace_seconds

    def look(self) -> bool:
        """End the process if the time is up; return whether it was."""
        now = self._clock()
        if self._killed_at is not None and now >= self._killed_at:
            self._end(*self._unanswered())
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

    def _unanswered(self) -> tuple[str, int]:
        """Return what to say at the end of the grace, and the exit code that is true."""
        why = f"received SIGTERM {self._grace_seconds:.0f} s ago and TensorFlow did not respond"
        saved = self.saved_step()
        lost = max(0, self._step - saved) if self._step is not None else 0
        if not lost:
            return (
                f"training interrupted: {why}; all finished steps are saved, start again to resume",
                EXIT_START_AGAIN,
            )
        return (
            f"training failed: {why}; {lost} steps after the last checkpoint, of step {saved}, are "
            "lost; start again to resume from it",
            EXIT_FAILURE,
        )
