"""Capture profiles of this process and of remote workers for TensorBoard."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType

import tensorflow as tf

from tpu_training.cluster.endpoint import why_silent
from tpu_training.errors import EndpointError
from tpu_training.loop.callbacks import Callback, LoopReport

# A classic TPU node has its profiler here (https://cloud.google.com/tpu/docs/cloud-tpu-tools);
# TensorFlow's own server answers on its only port.
_NODE_PROFILER_PORT = 8466
_PROBE_SECONDS = 2.0
# Steps per signal: enough to be useful, few enough for the viewer.
_ON_DEMAND_STEPS = 20
_SHORTEST_SECONDS = 1.0
_LONGEST_SECONDS = 60.0
_ATTEMPTS = 3

logger = logging.getLogger(__name__)

Trace = Callable[[Sequence[str], str, float], None]


def trace_workers(workers: Sequence[str], logdir: str, seconds: float) -> None:
    """Have each `host:port` profile itself for `seconds` and write the profile to `logdir`.

    The worker writes the profile, so a path without gs:// is on its machine.

    Raises:
        EndpointError: The workers are silent or idle.
    """
    if "://" not in logdir:
        logdir = os.path.abspath(logdir)
        logger.warning("profile: each worker writes to %s on its own disk", logdir)
    services = ",".join(f"grpc://{_profiler_of(worker)}" for worker in workers)
    try:
        tf.profiler.experimental.client.trace(
            services, logdir, int(seconds * 1000), num_tracing_attempts=_ATTEMPTS
        )
    except (tf.errors.OpError, RuntimeError) as error:
        raise EndpointError(
            f"{services} returned no profile in {seconds:g} s "
            f"({str(error).partition(chr(10))[0]}): check that they compute something, and that "
            "this machine can reach the port"
        ) from error


def _profiler_of(worker: str) -> str:
    node = f"{worker.rpartition(':')[0]}:{_NODE_PROFILER_PORT}"
    return node if why_silent(node, _PROBE_SECONDS) is None else worker


class ProfileCapture(Callback):
    """Captures the given steps, and some steps after each SIGUSR1.

    Captures are widened to whole loops. Without remote workers this process records itself; a
    background thread asks remote workers for a profile of the expected duration.
    """

    def __init__(
        self,
        logdir: str,
        workers: Sequence[str],
        steps: tuple[int, int] | None,
        trace: Trace = trace_workers,
    ) -> None:
        """Write profiles of `workers` (empty: this process) to `logdir`; tests replace `trace`."""
        self._logdir = logdir
        self._workers = workers
        self._next = steps
        self._trace = trace
        self._until: int | None = None
        self._requested = False
        self._thread: threading.Thread | None = None
        self._seconds_per_step = 0.0
        self._previous: signal._HANDLER = None

    def start(self, step: int) -> None:
        """Handle SIGUSR1; begin at once if the first loop is requested."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGUSR1, self._request)
        if self._next and step >= self._next[1]:
            self._next = None  # An earlier start has done them.
        self._begin_if_due(step, 1)

    def before_loop(self, step: int, report: LoopReport) -> None:
        """End a complete capture; begin one that is due."""
        self._seconds_per_step = report.seconds / report.count
        if self._until is not None and step >= self._until:
            self._end(step)
        if self._requested and self._until is None:
            self._requested = False
            self._next = (step + 1, step + _ON_DEMAND_STEPS)
        self._begin_if_due(step, report.count)

    def close(self) -> None:
        """End a running capture."""
        if self._until is not None:
            self._end(self._until)
        if self._previous is not None:
            signal.signal(signal.SIGUSR1, self._previous)

    def _request(self, _signal: int, _frame: FrameType | None) -> None:
        self._requested = True

    def _begin_if_due(self, step: int, loop: int) -> None:
        """Begin if the next loop, of about `loop` steps, reaches the first requested step."""
        if self._next is None or self._until is not None or step + loop < self._next[0]:
            return
        first, self._until = step + 1, max(self._next[1], step + 1)
        self._next = None
        logger.info("profile: capturing from step %d to %d", first, self._until)
        if self._workers:
            steps = max(self._until - step, loop)
            self._thread = threading.Thread(target=self._trace_in_background, args=(steps,))
            self._thread.start()
        else:
            tf.profiler.experimental.start(self._logdir)

    def _trace_in_background(self, steps: int) -> None:
        expected = steps * self._seconds_per_step
        seconds = min(max(expected, _SHORTEST_SECONDS), _LONGEST_SECONDS)
        try:
            self._trace(self._workers, self._logdir, seconds)
        except EndpointError as error:
            # A failed profile must not end the training.
            logger.warning("profile: %s", error)

    def _end(self, step: int) -> None:
        self._until = None
        if self._thread is None:
            tf.profiler.experimental.stop()
        else:
            self._thread.join()
            self._thread = None
        logger.info("profile: captured up to step %d, in %s/plugins/profile", step, self._logdir)
