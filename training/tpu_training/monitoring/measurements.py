"""What measures a training: curves, where the time goes, speed, the ledger, the report.

All of it works on the host between two loops, with figures that the loops have returned: nothing
here makes a device wait.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import data_set, files
from tpu_training.goodput import ledger as ledgers
from tpu_training.goodput.account import account
from tpu_training.loop.callbacks import Callback, History, LoopReport
from tpu_training.loop.state import TrainState
from tpu_training.models.params import Params, parse_steps
from tpu_training.monitoring.profiler import ProfileCapture
from tpu_training.monitoring.summaries import ModelSummaries, Series, Summaries, read_series
from tpu_training.monitoring.terminal import Progress

STEP_PARTS = ("compute", "input", "checkpoint", "idle")
STEP_TIMES = "seconds_per_step"
# A killed start is known up to its last entry; each is a write to the bucket.
_WRITE_SECONDS = 60.0
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
        self.ledger = LedgerWriter(model_dir, self.times, beginning.begun, why)
        self.curves = Curves(self.summaries, self.progress, peak)
        self.history = History()
        self._profiles = ProfileCapture(logs, cluster.workers, parse_steps(params.profile_steps))

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of the training; each may use what those before it have measured."""
        measurements = [self.progress, self.curves, self.times, self.ledger]
        return [*measurements, self.model, self.history, self._profiles]

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.summaries.close()


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
    """Keeps the entry of this start, `MODEL_DIR/ledger/BEGIN-PROCESS.json`.

    Runs after StepTimes, which measures. An entry that can't be written never ends a training.
    """

    def __init__(
        self,
        model_dir: str,
        times: StepTimes,
        begun: float,
        why: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str, str], None] = files.write_text,
    ) -> None:
        """Take the figures from `times`; the job was started at `begun` by `clock`.

        `why` says why it was asked to end, if it was.
        """
        self._times, self._clock, self._write = times, clock, write
        self._begun, self._why = begun, why
        self._begin = time.time() - (clock() - begun)
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(self._begin))}-{os.getpid()}.json"
        self._path = f"{model_dir.rstrip('/')}/{ledgers.FOLDER}/{name}"
        self._first = self._last = 0
        self._goal: int | None = None
        self._written = clock()

    def start(self, step: int) -> None:
        """Note the first step."""
        self._first = self._last = step
        self._keep("")

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Note the step; write from time to time."""
        self._last, self._goal = step, report.last_step
        # A start that is killed can't write later how far its checkpoints go.
        if report.checkpoint_seconds or self._clock() - self._written >= _WRITE_SECONDS:
            self._keep("")

    def close(self) -> None:
        """Write why the training ended; the evaluations of a finished job come yet."""
        self._keep(self._why() or ("" if self._last == self._goal else "the trainer ended"))

    def finish(self) -> None:
        """Write the last time, after all evaluations."""
        self._keep(ledgers.FINISHED)

    def _entry(self, ending: str) -> ledgers.Entry:
        seconds = {part: round(self._times.seconds[part], 3) for part in ledgers.PARTS}
        return ledgers.Entry(
            begin=round(self._begin, 3),
            duration=round(self._clock() - self._begun, 3),
            first_step=self._first,
            last_step=self._last,
            seconds=seconds,
            machine=socket.gethostname(),
            ending=ending,
        )

    def _keep(self, ending: str) -> None:
        self._written = self._clock()
        try:
            self._write(self._path, self._entry(ending).to_json())
        except Exception as error:
            logger.warning("ledger: not written (%s)", error)


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
