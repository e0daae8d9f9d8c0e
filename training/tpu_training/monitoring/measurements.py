"""What measures a training: curves, where the time goes, speed, the ledger, the report.

All of it works on the host between two loops, with figures that the loops have returned: nothing
here makes a device wait.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

import tensorflow as tf

from tpu_core import ledger as ledgers
from tpu_training.cluster.cluster import Cluster
from tpu_training.cluster.endpoint import why_silent
from tpu_training.cluster.google import is_bucket
from tpu_training.data import data_set, files
from tpu_training.errors import EndpointError
from tpu_training.goodput.account import account
from tpu_training.loop.callbacks import Callback, History, LoopReport
from tpu_training.loop.state import TrainState
from tpu_training.models.params import Params, parse_steps
from tpu_training.monitoring.summaries import ModelSummaries, Series, Summaries, read_series
from tpu_training.monitoring.terminal import Progress

STEP_PARTS = ("compute", "input", "checkpoint", "idle")
STEP_TIMES = "seconds_per_step"
REPORT_FORMAT = 1
COST_NOTE = "TPU_TRAINING_COST_NOTE"
"""The variable that says what the machines keep costing, and which command ends that."""
_FILES = ("metrics", "model", "classes")

logger = logging.getLogger(__name__)


class Monitor:
    """Everything that measures one training: terminal, TensorBoard, ledger and profiles."""

    def __init__(
        self,
        cluster: Cluster,
        params: Params,
        model_dir: str,
        data: data_set.DataSet,
        state: TrainState,
        beginning: ledgers.Beginning,
        why: Callable[[], str],
        peak: float,
    ) -> None:
        """Write below `model_dir`; see LedgerWriter for `why` and Curves for `peak`."""
        logs = f"{model_dir}/tensorboard"
        self.summaries = Summaries(logs)
        self.model = ModelSummaries(cluster, params, data, state, self.summaries)
        self.progress = Progress(params.global_batch_size)
        self.times = StepTimes(self.summaries, beginning)
        self.ledger = LedgerWriter(model_dir, self.times, beginning, why)
        self.curves = Curves(self.summaries, self.progress, peak)
        self.history = History()
        self._profiles = ProfileCapture(logs, cluster.workers, parse_steps(params.profile_steps))

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of the training; each may use what those before it have measured."""
        measurements = [self.progress, self.curves, self.times, self.ledger]
        return [*measurements, self.model, self.history, self._profiles]


class StepTimes(Callback):
    """Splits the time since the last loop into parts, for TensorBoard and a final log line.

    What came before the first loop, that loop, which compiles the step, and evaluations count as
    separate parts.
    """

    def __init__(self, summaries: Summaries, beginning: ledgers.Beginning) -> None:
        """Write to `summaries` what comes after `beginning`, by the same clock."""
        self._summaries = summaries
        self._clock = beginning.clock
        self.start(0)
        self.seconds = beginning.seconds | dict.fromkeys(("start", *STEP_PARTS, "evaluate"), 0.0)

    def start(self, step: int) -> None:
        """Start measuring; an evaluation may have come before."""
        self._last, self._evaluated = self._clock(), 0.0

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Add the loop's parts."""
        now = self._clock()
        whole, self._last = now - self._last - self._evaluated, now
        self._evaluated = 0.0
        if not self.seconds["start"]:
            self.seconds["start"] = whole
            return
        # The worker's clock may show slightly more than this machine's.
        waited = min(report.input_seconds, report.seconds)
        parts = {
            "compute": report.seconds - waited,
            "input": waited,
            "checkpoint": report.checkpoint_seconds,
            "idle": max(0.0, whole - report.seconds - report.checkpoint_seconds),
        }
        for part, seconds in parts.items():
            self.seconds[part] += seconds
        self._summaries.scalars(
            step,
            {f"{STEP_TIMES}/{part}": seconds / report.count for part, seconds in parts.items()},
        )

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time within as an evaluation."""
        begun = self._clock()
        try:
            yield
        finally:
            took = self._clock() - begun
            self.seconds["evaluate"] += took
            self._evaluated += took

    def close(self) -> None:
        """Log the sums."""
        whole = sum(self.seconds.values())
        if whole:
            shares = [f"{p} {s:.1f} s ({s / whole:.0%})" for p, s in self.seconds.items() if s]
            logger.info("time: %s", ", ".join(shares))


class Curves(Callback):
    """Writes the training's curves; measures the model's operations a second.

    Those are without the first loop, which compiles. The share of the peak is the model FLOPs
    utilisation of PaLM (arXiv:2204.02311, appendix B); it is known where the peak is.
    """

    def __init__(self, summaries: Summaries, progress: Progress, peak: float) -> None:
        """Write to `summaries`, with the rate that `progress` measures; it must be called first.

        `peak` is that of all replicas a second, 0 where it is unknown.
        """
        self._summaries, self._progress, self._peak = summaries, progress, peak
        self._loops = 0
        self._operations = self._seconds = self._highest_norm = self._last_norm = 0.0

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the whole training, by name; none after a single loop."""
        return self._figures(self._operations / self._seconds) if self._seconds else {}

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Write one point of each curve."""
        self._loops += 1
        self._last_norm = report.gradient_norm
        self._highest_norm = max(self._highest_norm, report.gradient_norm)
        figures = {
            "loss": report.loss,
            **report.metrics,
            "gradient_norm": report.gradient_norm,
            "learning_rate": report.learning_rate,
            "examples_per_second": self._progress.examples_per_second,
        }
        if self._loops > 1 and report.flops:
            operations = report.flops * report.count
            self._operations += operations
            self._seconds += report.seconds
            figures |= self._figures(operations / report.seconds)
        self._summaries.scalars(step, {f"train/{name}": each for name, each in figures.items()})

    def close(self) -> None:
        """Log the figures."""
        if self._loops:
            logger.info(
                "gradient: norm %.3g in the last loop, at most %.3g",
                self._last_norm,
                self._highest_norm,
            )
        if figures := self.figures:
            share = f", {figures['mfu']:.1%} of the peak (MFU)" if "mfu" in figures else ""
            logger.info("speed: %.3g FLOP/s%s", figures["flops_per_second"], share)

    def _figures(self, rate: float) -> dict[str, float]:
        return {"flops_per_second": rate} | ({"mfu": rate / self._peak} if self._peak else {})


def read_ledger(model_dir: str) -> ledgers.Ledger:
    """Read the ledger in a model directory. Raises TensorFlow's errors, not for damaged files."""
    folder = f"{model_dir.rstrip('/')}/{ledgers.FOLDER}"
    return ledgers.read(
        ledgers.File(name, files.read_bytes(f"{folder}/{name}").decode("utf-8", errors="replace"))
        for name in files.names(folder)
        if name.endswith(".json")
    )


class LedgerWriter(Callback):
    """Keeps the entry of this start in the ledger. Runs after StepTimes, which measures."""

    def __init__(
        self,
        model_dir: str,
        times: StepTimes,
        beginning: ledgers.Beginning,
        why: Callable[[], str] = lambda: "",
        write: Callable[[str, str], None] = files.write_text,
    ) -> None:
        """Take the figures from `times`; `why` says why the job was asked to end, if it was."""
        folder = model_dir.rstrip("/")
        self._entry = ledgers.Writer(
            times.seconds, beginning, lambda path, text: write(f"{folder}/{path}", text)
        )
        self._why = why
        self._goal: int | None = None

    def start(self, step: int) -> None:
        """Note the first step."""
        self._entry.start(step)

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Note the step."""
        self._goal = report.last_step
        self._entry.step(step, saved=bool(report.checkpoint_seconds))

    def close(self) -> None:
        """Write why the training ended; the evaluations of a finished job come yet."""
        done = self._entry.last == self._goal
        self._entry.keep(self._why() or ("" if done else "the trainer ended"))

    def finish(self) -> None:
        """Write the last time, after all evaluations."""
        self._entry.keep(ledgers.FINISHED)


def write_report(model_dir: str) -> str:
    """Write what a training has left in `model_dir`, over all of its starts; return the file.

    In `report.json`, `series` has every scalar of TensorBoard by tag and step, `seconds` where the
    time of the steps went, `goodput` where the wall time did; `metrics`, `model` and `classes` are
    the files of these names.
    """
    base = model_dir.rstrip("/")
    series, ledger = read_series(f"{base}/tensorboard"), read_ledger(base)
    report = {
        "format": REPORT_FORMAT,
        "model_dir": model_dir,
        **{name: files.read_json(f"{base}/{name}.json") for name in _FILES},
        "series": series,
        "seconds": _seconds(series),
        "cost_note": os.environ.get(COST_NOTE, ""),
        "goodput": account(ledger).to_dict(),
        "problems": ledger.problems,
    }
    path = f"{base}/report.json"
    files.write_text(path, json.dumps(report, indent=1) + "\n")
    return path


def _seconds(series: Mapping[str, Series]) -> dict[str, float]:
    """Return the seconds of each part, from the seconds per step at the end of each loop.

    The events have steps and no counts: a loop's steps are those since the one before.
    """
    seconds = dict.fromkeys(STEP_PARTS, 0.0)
    steps = sorted(series.get("train/loss", {}))
    counts = {step: step - before for before, step in zip([0, *steps], steps, strict=False)}
    for part in STEP_PARTS:
        for step, value in series.get(f"{STEP_TIMES}/{part}", {}).items():
            seconds[part] += value * counts.get(step, 0)
    return seconds


# Profiles of this process and of remote workers, for TensorBoard.

# A classic TPU node has its profiler here (https://cloud.google.com/tpu/docs/cloud-tpu-tools);
# TensorFlow's own server answers on its only port.
_NODE_PROFILER_PORT = 8466
_PROBE_SECONDS = 2.0
# Steps per signal: enough to be useful, few enough for the viewer.
_ON_DEMAND_STEPS = 20
_SHORTEST_SECONDS = 1.0
_LONGEST_SECONDS = 60.0
_ATTEMPTS = 3
Trace = Callable[[Sequence[str], str, float], None]


def trace_workers(workers: Sequence[str], logdir: str, seconds: float) -> None:
    """Have each `host:port` profile itself for `seconds` and write the profile to `logdir`.

    The worker writes the profile, so a path without gs:// is on its machine.

    Raises:
        EndpointError: The workers are silent or idle.
    """
    if not is_bucket(logdir):
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
        """Handle SIGUSR1 if nothing else does; begin at once if the first loop is requested."""
        free = signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, signal.SIG_IGN)
        if free and threading.current_thread() is threading.main_thread():
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
        if self._previous is not None:
            signal.signal(signal.SIGUSR1, self._previous)
        if self._until is not None:
            self._end(self._until)

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
