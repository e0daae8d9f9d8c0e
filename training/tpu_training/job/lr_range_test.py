"""The learning-rate range test (Leslie Smith, arXiv:1506.01186, section 3.3)."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.checkpoints.initial_weights import load_initial_weights
from tpu_training.cluster.cluster import Cluster
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NoTpu, Wait
from tpu_training.data import files
from tpu_training.data.data_set import DataSet
from tpu_training.data.inspection import readable_part
from tpu_training.data.pipeline import training_batches
from tpu_training.job.data import connect_and_open
from tpu_training.job.job import Job
from tpu_training.job.lr_verdict import (
    Curve,
    Point,
    Trials,
    Verdict,
    conclude,
    explore,
    exponential_rates,
    read,
)
from tpu_training.loop.optimizers import create_schedule
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop, run_loop
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition
from tpu_training.monitoring.summaries import Summaries
from tpu_training.tasks import task_of

_LINES = 20
# The end of a trial over which its loss is averaged: batches differ.
_END = 0.2
_SIZE_INCHES = (9.0, 5.0)
_DOTS_PER_INCH = 120
# Regions in grey, green and red, the line in dark blue. Labels distinguish them in greyscale.
_TOO_LOW, _GOOD, _DIVERGING = "#d9d9d9", "#c7e9c0", "#fcbba1"
_LINE, _RAW, _MARK = "#08306b", "#9ecae1", "#d94801"
_HEADROOM = 1.2
_NARROWEST = 10.0
_MARGIN = 1.1
_LINE_TOP = 0.88
# Room below a loss of 0 for half a mark, as a part of the axis.
_MARK_ROOM = 0.03
# A region that spans less has its name below those of its neighbours.
_NARROW = 1.8
# Multiple of the first loss; anything above only shows that it diverged.
_HIGHEST = 2.0

logger = logging.getLogger(__name__)


def connect_and_run(
    workers: Addresses | LocalTpu | NoTpu, wait: Wait, job: Job, sweep: Sweep, plot: bool
) -> Verdict:
    """Connect to `workers` and run the test there."""
    files.check_bucket(job.model_dir, "--model-dir")
    # What is held out for the training's validation must not choose its rate either.
    cluster, _, data = connect_and_open(workers, wait, job)
    while True:
        try:
            return run_lr_range_test(cluster, data, job, sweep, plot)
        except tf.errors.OpError as error:
            data = readable_part(data, job.params.skip_corrupt_records, error)


def run_lr_range_test(
    cluster: Cluster, data: DataSet, job: Job, sweep: Sweep, plot: bool
) -> Verdict:
    """Sweep on `cluster`, write `<model-dir>/lr_range_test/`, print and return the verdict."""
    job.params.replica_batch_size(cluster.replicas)
    model_dir = job.model_dir.rstrip("/")
    # Fail before the sweep if nothing can be written.
    files.make_directory(f"{model_dir}/lr_range_test")
    points, verdict = _test(cluster, data, job, sweep)
    title = (
        f"Learning-rate range test: {job.model.name} on {data.manifest.name}, "
        f"batch {job.params.global_batch_size}"
    )
    picture = _write(f"{model_dir}/lr_range_test", points, verdict, title if plot else None)
    summaries = Summaries(f"{model_dir}/tensorboard/lr_range_test")
    _show_in_tensorboard(summaries, points, picture)
    for reason in verdict.reasons:
        logger.info("lr-range-test: %s", reason)
    suggestion = verdict.suggestion and f"{verdict.suggestion:.2g}"
    print(
        f"lr-range-test finished suggestion={suggestion} steps={len(points)} "
        f"trials={len(verdict.trials)} results={model_dir}/lr_range_test",
        flush=True,
    )
    return verdict


def _test(
    cluster: Cluster, data: DataSet, job: Job, sweep: Sweep
) -> tuple[Sequence[Point], Verdict]:
    longest = max(sweep.steps, sweep.trial_steps)
    trainer = RateTrainer(cluster, job.model, job.params, data, longest)
    points = run_sweep(trainer, sweep)
    reading = read(points, sweep.smoothing)
    trials = run_trials(trainer, sweep, reading.lowest, reading.first) if reading.lowest else None
    # A loss of the user's own may have any values.
    spec = data.manifest.spec
    guesses = task_of(job.model, spec).gives_classes and not job.model.losses
    guessing = math.log(spec.classes) if guesses else None
    return points, conclude(reading, trials, sweep.trial_steps, guessing)


def _write(
    directory: str, points: Sequence[Point], verdict: Verdict, title: str | None
) -> bytes | None:
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["step", "learning_rate", "loss", "smoothed_loss"])
    rows.writerows([p.step, p.rate, p.loss, p.smoothed] for p in points)
    files.write_text(f"{directory}/curve.csv", table.getvalue())
    files.write_text(
        f"{directory}/verdict.json", json.dumps(dataclasses.asdict(verdict), indent=2) + "\n"
    )
    if title is None:
        return None

    picture = draw(points, verdict, title)
    files.write_bytes(f"{directory}/curve.png", picture)
    return picture


def _show_in_tensorboard(
    summaries: Summaries, points: Sequence[Point], picture: bytes | None
) -> None:
    """Write the plot, and three curves over the steps, TensorBoard's only axis."""
    for point in points:
        values = {
            "lr_range_test/learning_rate": point.rate,
            "lr_range_test/loss": point.loss,
            "lr_range_test/smoothed_loss": point.smoothed,
        }
        summaries.scalars(point.step, values)
    if picture is not None:
        summaries.picture(len(points), "lr_range_test/curve", picture)
    summaries.close()


@dataclass(frozen=True)
class Sweep:
    """The range of rates, the number of steps, the smoothing of the loss, the steps of a trial."""

    lowest: float
    highest: float
    steps: int
    smoothing: float
    trial_steps: int = 100


class RateTrainer:
    """Trains the same new model again and again, at rates that are given step by step.

    It is compiled once: the rates are a variable, and a new start restores the first weights.
    `state` is what the last training has left.
    """

    def __init__(
        self, cluster: Cluster, model: ModelDefinition, params: Params, data: DataSet, longest: int
    ) -> None:
        """Prepare for at most `longest` steps from each start."""
        self._cluster, self._params, self._longest = cluster, params, longest
        self.state = state = create_train_state(cluster, model, params, data.manifest, longest)
        load_initial_weights(cluster, params, state.model)
        with cluster.strategy.scope():
            self._rates = tf.Variable(
                tf.zeros(longest),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        state.optimizer.rate = lambda step: tf.gather(self._rates, tf.maximum(step, 0))
        self._variables = [*state.model.variables, *state.optimizer.variables, state.step]
        self._first = [variable.numpy() for variable in self._variables]
        batches = training_batches(data, cluster, params)
        self._loop = create_train_loop(cluster, params, state, batches)

    def start(self, rates: Sequence[float]) -> None:
        """Start over, with a step at each of `rates`."""
        for variable, value in zip(self._variables, self._first, strict=True):
            variable.assign(value)
        missing = self._longest - len(rates)
        self._rates.assign(np.pad(np.array(rates, np.float32), (0, missing)))

    def do(self, steps: int) -> float:
        """Do the next `steps` and return their mean loss."""
        return run_loop(self._cluster, self._loop, steps).loss

    def try_rate(self, rate: float, steps: int) -> float:
        """Train with `rate` as the peak of the job's schedule; return the loss at the end."""
        schedule = create_schedule(dataclasses.replace(self._params, learning_rate=rate), steps)
        self.start([float(schedule(tf.constant(step, tf.int64))) for step in range(steps)])
        end = max(1, round(_END * steps))
        before = self.do(steps - end)
        loss = self.do(end) if math.isfinite(before) else math.nan
        logger.info("trial steps=%d learning_rate=%.3g loss=%.4f", steps, rate, loss)
        return loss


def run_sweep(trainer: RateTrainer, sweep: Sweep) -> list[Point]:
    """Do one regular training step at each rate, until the loss diverges.

    If a loss that is not finite ended the sweep, it is that of the last point.
    """
    rates = exponential_rates(sweep.lowest, sweep.highest, sweep.steps)
    trainer.start(rates)
    curve = Curve(sweep.smoothing)
    for step, rate in enumerate(rates):
        loss = trainer.do(1)
        goes_on = curve.add(rate, loss)
        if not goes_on or step % max(1, sweep.steps // _LINES) == 0 or step == len(rates) - 1:
            logger.info(
                "sweep step=%d/%d learning_rate=%.3g loss=%.4f", step + 1, sweep.steps, rate, loss
            )
        if not goes_on:
            break
    return curve.points


def run_trials(trainer: RateTrainer, sweep: Sweep, start: float, first: float) -> Trials:
    """Train shortly at `start` and at rates around it; `first` is the loss before any step."""
    return explore(
        start,
        first,
        sweep.lowest,
        sweep.highest,
        lambda rate: trainer.try_rate(rate, sweep.trial_steps),
    )


def draw(points: Sequence[Point], verdict: Verdict, title: str) -> bytes:
    """Return a PNG of the loss over the learning rate on a logarithmic axis."""
    picture = io.BytesIO()
    # Without date and version, the same curve gives the same bytes.
    plot(points, verdict, title).savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def plot(points: Sequence[Point], verdict: Verdict, title: str) -> Any:
    """Return the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    rates = [point.rate for point in points]
    axes.set_xscale("log")
    right = max(rates[-1], rates[0] * _NARROWEST, *verdict.trials)
    axes.set_xlim(min([rates[0], *verdict.trials]), right * _MARGIN)
    top = _highest(points, verdict)
    axes.set_ylim(-_MARK_ROOM * top, top)
    _shade(axes, verdict)
    axes.plot(rates, [p.loss for p in points], color=_RAW, linewidth=1, label="loss of each step")
    smoothed = verdict.smoothed
    axes.plot(rates[: len(smoothed)], smoothed, color=_LINE, linewidth=2, label="smoothed")
    ends = {rate: math.inf if loss is None else loss for rate, loss in verdict.trials.items()}
    for marker, label, above in (
        ("o", "end of each trial", False),
        ("^", "higher, or not finite", True),
    ):
        if drawn := {rate: min(loss, top) for rate, loss in ends.items() if (loss > top) == above}:
            dots = list(drawn), list(drawn.values())
            axes.plot(*dots, marker, color=_MARK, label=label, clip_on=False, zorder=3)
    if verdict.suggestion is not None:
        axes.axvline(verdict.suggestion, 0, _LINE_TOP, color=_MARK, linewidth=1.5, linestyle="--")
        is_right = _across(axes, verdict.suggestion) > 0.5
        axes.annotate(
            f"suggestion {verdict.suggestion:.2g}",
            (verdict.suggestion, _LINE_TOP),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-6 if is_right else 6, -10),
            textcoords="offset points",
            horizontalalignment="right" if is_right else "left",
            color=_MARK,
            fontweight="bold",
        )
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    axes.set_title(title, loc="left")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="best", framealpha=0.9)
    return figure


def _highest(points: Sequence[Point], verdict: Verdict) -> float:
    """Limit the axis by the smoothed curve: one exploding step would flatten everything else."""
    if not verdict.smoothed:
        return 1.0
    high = min(max(verdict.smoothed), _HIGHEST * points[0].loss)
    return high * _HEADROOM


def _across(axes: Any, rate: float) -> float:
    """Return where `rate` is on the axis, from 0 at its left end to 1 at its right one."""
    left, right = axes.get_xlim()
    return math.log(rate / left) / math.log(right / left)


def _shade(axes: Any, verdict: Verdict) -> None:
    end = axes.get_xlim()[1]
    regions = [(axes.get_xlim()[0], verdict.good_from or end, _TOO_LOW, "too low")]
    if verdict.good_from and verdict.good_to:
        regions.append((verdict.good_from, verdict.good_to, _GOOD, "good"))
        if verdict.diverged:
            regions.append((verdict.good_to, end, _DIVERGING, "diverging"))
        else:
            regions[-1] = (verdict.good_from, end, _GOOD, "good")
    for row, (left, right, colour, name) in enumerate(regions):
        if right <= left:
            continue
        axes.axvspan(left, right, color=colour, linewidth=0, zorder=0)
        middle, is_narrow = _across(axes, (left * right) ** 0.5), right < left * _NARROW
        axes.text(
            min(max(middle, 0.06), 0.93),
            0.97 - (0.05 * row if is_narrow else 0.0),
            name,
            transform=axes.transAxes,
            horizontalalignment="center",
            verticalalignment="top",
            fontweight="bold",
            color="#404040",
        )
