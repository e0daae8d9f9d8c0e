"""What ends a job or lets it save: signals, notices of a preemption, hangs; and its heartbeat.

Its supervisor learns by two files that the environment names whether the job lives, and how it has
ended; without the names nothing is written.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tpu_core.bucket import Bucket
from tpu_core.google import GoogleError, MetadataServer, metadata_server
from tpu_core.records import replace_file
from tpu_training.cluster import endpoint, google
from tpu_training.cluster.hosts import LostHostError
from tpu_training.errors import EXIT_FAILURE, EXIT_START_AGAIN, TrainingError, find_known_error
from tpu_training.loop.callbacks import Callback, LoopReport, ShutdownRequest

# A preempted VM has 30 seconds until it stops.
# https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
_GRACE_SECONDS = 25.0
_LONGEST_WAIT = 3600.0
# After this many more seconds the timer itself counts as stuck: TensorFlow may hold the GIL while
# it waits. faulthandler's thread does not need the GIL; its message is a traceback.
_BACKSTOP_SECONDS = 5.0
_STDERR = 2
OUTCOME, PULSE = "TPU_TRAINING_OUTCOME", "TPU_TRAINING_PULSE"
# No supervisor looks more often.
_RARELY_SECONDS = 1.0
# How long the metadata server waits for a change before it answers as it is.
_CHANGE_SECONDS = 60
# The pause before a server that can't be reached is asked again.
_PAUSE_SECONDS = 1.0
# Of a preempted TPU VM's 30 seconds; one list of objects costs 0.0005 cents.
_LOOK_SECONDS = 5.0
# After a notice of the TPU VM's, further ones are ignored for so long.
_DEAF_SECONDS = 60.0
_NOTICES = "TPU_TRAINING_NOTICES"
# How Google's own library tells its machines from others (google.auth.compute_engine._metadata).
_PRODUCT = Path("/sys/class/dmi/id/product_name")

logger = logging.getLogger(__name__)


@contextmanager
def supervised(*, own_process: bool = False) -> Iterator[tuple[ShutdownRequest, HangTimer]]:
    """Hear SIGTERM and notices, and end a process that hangs, while the block runs.

    Signals are heard in the main thread only, where the program has no handler of its own.

    Args:
        own_process: Whether the process ends with the block. After an error all stays on then:
            what waits at the exit may hang, too.
    """
    shutdown, hang_timer, over = ShutdownRequest(), HangTimer(), threading.Event()
    with ExitStack() as undo:
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        hears = in_main and before in (signal.SIG_DFL, signal.SIG_IGN)
        if hears:
            undo.callback(signal.signal, signal.SIGTERM, before)
            shutdown.install()
        if hears and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            # It requests a profile. Before training starts it must not end the process.
            undo.callback(signal.signal, signal.SIGUSR1, signal.SIG_DFL)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        undo.callback(hang_timer.uninstall)
        hang_timer.install(signals=hears)
        undo.callback(over.set)
        hear_notices(shutdown, over)
        try:
            yield shutdown, hang_timer
        except BaseException:
            if own_process:
                undo.pop_all()
            raise


def _end(message: str, code: int, cause: str = "hung") -> NoReturn:
    """Exit without clean-up, which would wait for the hanging thread."""
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    write_outcome(code, cause if code == EXIT_FAILURE else "", message)
    os._exit(code)


def _end_without_worker(why: str) -> NoReturn:
    known = find_known_error("UnavailableError")
    assert known
    _end(f"training failed: {known.cause}: {known.fix} [{why}]", EXIT_FAILURE, known.id)


def end_without_host(message: str, code: int) -> NoReturn:
    """Exit as a host whose steps wait for another one that is gone."""
    _end(message, code, LostHostError.cause)


class HangTimer(Callback):
    """Ends a process in which TensorFlow hangs, so that it can restart from its last checkpoint.

    Python runs signal handlers in the main thread, between bytecode instructions. While TensorFlow
    waits there for a worker that neither answers nor closes the connection, no handler runs, for
    hours (tensorflow#38190). So a thread of its own watches for SIGTERM once installed, and for
    progress once `watch` is called, and exits the process without clean-up.
    """

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
        self.saved_step: Callable[[], int | None] = lambda: 0
        """Returns the step of the last whole checkpoint; None where another host saves."""
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
            self._undo.enter_context(endpoint.watching(workers, _end_without_worker))

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
                f"training failed: {known.cause}: {known.fix}; see {known.link} [no loop of steps "
                f"was finished for {self._timeout:.0f} s (--hang_timeout)]",
                EXIT_FAILURE,
            )
        else:
            return False
        return True

    def _unanswered(self) -> tuple[str, int]:
        """Return what to say at the end of the grace, and the exit code that is true."""
        why = f"received SIGTERM {self._grace_seconds:.0f} s ago, and TensorFlow didn't respond"
        saved = self.saved_step()
        if self._step is None or (saved is not None and self._step <= saved):
            return (
                f"training interrupted: {why}; all finished steps are saved; start again to resume",
                EXIT_START_AGAIN,
            )
        lost = (
            "steps after the last checkpoint, which host 0 saves, are lost"
            if saved is None
            else f"{self._step - saved} steps after the last checkpoint, of step {saved}, are lost"
        )
        return f"training failed: {why}; {lost}; start again to resume from it", EXIT_FAILURE


def write_outcome(exit_code: int, cause: str, message: str) -> None:
    """Say how this process ends: `{"exitCode", "cause", "message"}`.

    Args:
        exit_code: with which it ends.
        cause: an ID of the catalog of errors, or a word of its own; empty if it is not known.
        message: for people, with the cure.
    """
    content = {"exitCode": exit_code, "cause": cause, "message": message}
    _write_file(OUTCOME, json.dumps(content))


class Pulse:
    """Says until when the next sign of life comes, and how many steps are done: `TIME STEP`.

    The time is in seconds since the epoch, 0 if there is no limit; the step is -1 before the first.
    """

    def __init__(self) -> None:
        self._written = -_RARELY_SECONDS

    def beat(self, seconds: float, step: int | None) -> None:
        """Expect the next beat within `seconds`; 0 for no limit."""
        now = time.monotonic()
        if now - self._written < _RARELY_SECONDS and step is not None:
            return
        self._written = now
        deadline = time.time() + seconds if seconds else 0.0
        _write_file(PULSE, f"{deadline:.0f} {-1 if step is None else step}")


def _write_file(variable: str, text: str) -> None:
    if path := os.environ.get(variable):
        # A supervisor that learns nothing goes by the exit code.
        with contextlib.suppress(OSError):
            replace_file(Path(path), text.encode())


class Notices:
    """Turns the metadata server's notices into requests to save or to end."""

    def __init__(self, shutdown: ShutdownRequest) -> None:
        self._shutdown = shutdown
        self._had: dict[str, str] = {}

    def look(self, instance: Mapping[str, Any]) -> None:
        """React to what is new in the metadata of the instance."""
        if self._is_new("preempted", instance.get("preempted"), quiet=("", "FALSE")):
            self._shutdown.request("Google preempts this machine (instance/preempted)")
        event = instance.get("maintenanceEvent")
        if self._is_new("maintenance-event", event, quiet=("", "NONE")):
            self._shutdown.request_save()
        if self._is_new("upcoming-maintenance", instance.get("upcomingMaintenance")):
            self._shutdown.request_save()

    def _is_new(self, name: str, value: object, quiet: tuple[str, ...] = ("",)) -> bool:
        text = "" if value is None else str(value)
        had, self._had[name] = self._had.get(name, ""), text
        if text == had or text in quiet:
            return False
        logger.info("notice: %s is %s; saving a checkpoint", name, text)
        return True


def hear_notices(
    shutdown: ShutdownRequest, over: threading.Event, server: MetadataServer | None = None
) -> None:
    """Listen on threads until `over` is set, if this or the TPU's is one of Google's machines.

    The TPU VM writes an object to the bucket. Only a change of it counts, and makes the training
    save: other writers of the bucket can't end it. The metadata server tells of this machine. One
    request waits for any change below `instance/`, so that a notice is heard as it is given.
    https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
    https://docs.cloud.google.com/compute/docs/metadata/getting-live-migration-notice
    """
    if path := os.environ.get(_NOTICES):
        bucket, _, name = path.removeprefix("gs://").partition("/")
        look = partial(generation_of, google.bucket(bucket), name)
        about_tpu = shutdown, over, look
        threading.Thread(
            target=hear_of_tpu, args=about_tpu, name="tpu-notices", daemon=True
        ).start()
    server = server or metadata_server()
    if server.host == MetadataServer().host and not _is_google(_PRODUCT):
        return
    about = Notices(shutdown), over, server
    threading.Thread(target=_listen, args=about, name="notices", daemon=True).start()


def hear_of_tpu(
    shutdown: ShutdownRequest, over: threading.Event, look: Callable[[], int | None]
) -> None:
    """Ask for a checkpoint whenever `look` finds something else, None apart, until `over`."""
    had = None
    while not over.wait(_LOOK_SECONDS):
        found = look()
        if None not in (had, found) and found != had:
            logger.info("notice: the TPU VM may be about to stop; saving a checkpoint")
            shutdown.request_save()
            over.wait(_DEAF_SECONDS)
        had = had if found is None else found


def generation_of(bucket: Bucket, name: str) -> int | None:
    """Return which object is there, 0 for none; None if that is not known now.

    A list needs the least of rights, and a job's own account may have no other there.
    """
    try:
        return next((one.generation for one in bucket.items(name) if one.path == name), 0)
    except (TrainingError, GoogleError):
        return None


def _listen(notices: Notices, over: threading.Event, server: MetadataServer) -> None:
    etag = ""
    while not over.is_set():
        try:
            text, etag = server.wait("instance/?recursive=true&alt=json", etag, _CHANGE_SECONDS)
            if not over.is_set():
                notices.look(json.loads(text))
        except OSError:
            over.wait(_PAUSE_SECONDS)
        except (ValueError, AttributeError):
            logger.warning("notice: the metadata server's answer is not JSON")
            over.wait(_PAUSE_SECONDS)


def _is_google(product: Path) -> bool:
    try:
        return product.read_text(encoding="ascii", errors="replace").startswith("Google")
    except OSError:
        return False
