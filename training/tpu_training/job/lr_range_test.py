"""The learning-rate range test (Leslie Smith, arXiv:1506.01186, section 3.3)."""

from __future__ import annotations

import csv
import dataclasses
import io
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import tensorflow as tf

from tpu_core import records
from tpu_training.checkpoints import initial_weights
from tpu_training.cluster.cluster import Cluster
from tpu_training.cluster.endpoint import Wait, Workers
from tpu_training.data import data_set, files, inspection, pipeline
from tpu_training.data.manifest import TRAIN
from tpu_training.errors import InputError
from tpu_training.job.job import Job
from tpu_training.job.run import connect_and_open
from tpu_training.loop.optimizers import create_schedule
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop, run_loop
from tpu_training.models.params import JAX, Params
from tpu_training.models.registry import ModelDefinition
from tpu_training.monitoring.summaries import Summaries
from tpu_training.tasks import task_of

_LINES = 20
# The end of a trial over which its loss is averaged: batches differ.
_END = 0.2
# Of the plot: losses in blues, trials and suggestion in red, the regions pale behind them.
_LINE, _RAW, _MARK = "#08306b", "#9ecae1", "#d94801"
_REGIONS = {"too low": "#d9d9d9", "good": "#c7e9c0", "diverging": "#fcbba1"}
_HEADROOM = 1.2
# Multiple of the first loss; anything above only shows that it diverged.
_HIGHEST = 2.0

logger = logging.getLogger(__name__)


def connect_and_run(workers: Workers, wait: Wait, job: Job, sweep: Sweep, plot: bool) -> Verdict:
    """Connect to `workers` and run the test there."""
    files.check_bucket(job.model_dir, "--model-dir")
    if job.params.backend == JAX:
        raise InputError("--backend=jax: the test runs on TensorFlow's devices; omit it")
    # What is held out for the training's validation must not choose its rate either.
    cluster, _, data = connect_and_open(workers, wait, job)
    if data.growth:
        data.growth.wait(data.manifest.split(TRAIN).examples, lambda: None)
    try:
        return run_lr_range_test(cluster, data, job, sweep, plot)
    except tf.errors.OpError as error:
        inspection.blame_data(data, error)
        raise


def run_lr_range_test(
    cluster: Cluster, data: data_set.DataSet, job: Job, sweep: Sweep, plot: bool
) -> Verdict:
    """Sweep on `cluster`, write `<model-dir>/lr_range_test/`, print and return the verdict."""
    job.params.part_batch_size(cluster.replicas)
    task = task_of(job.model, data.manifest.spec)
    if task.optimizers:
        raise InputError(
            f"--task={task.name}: has an optimizer for each part, and the test one rate; try rates "
            "in the task's optimizers"
        )
    model_dir = job.model_dir.rstrip("/")
    # Fail before the sweep if nothing can be written.
    files.make_directory(f"{model_dir}/lr_range_test")
    # A loss of the user's own may have any values.
    guesses = task.gives_classes and not job.model.losses
    guessing = math.log(data.manifest.spec.classes) if guesses else None
    longest = max(sweep.steps, sweep.trial_steps)
    trainer = RateTrainer(cluster, job.model, job.params, data, longest)
    points = run_sweep(trainer, sweep)
    reading = read(points, sweep.smoothing)
    trials = run_trials(trainer, sweep, reading.lowest, reading.first) if reading.lowest else None
    verdict = conclude(reading, trials, sweep.trial_steps, guessing)
    title = (
        f"Learning-rate range test: {job.model.name} on {data.manifest.name}, "
        f"batch {job.params.global_batch_size}"
    )
    _write(model_dir, points, verdict, title if plot else None)
    for reason in verdict.reasons:
        logger.info("lr-range-test: %s", reason)
    suggestion = verdict.suggestion and f"{verdict.suggestion:.2g}"
    print(
        f"lr-range-test finished suggestion={suggestion} steps={len(points)} "
        f"trials={len(verdict.trials)} results={model_dir}/lr_range_test",
        flush=True,
    )
    return verdict


def _write(model_dir: str, points: Sequence[Point], verdict: Verdict, title: str | None) -> None:
    """Write the results as files, and for TensorBoard, whose only axis is the step."""
    directory = f"{model_dir}/lr_range_test"
    summaries = Summaries(f"{model_dir}/tensorboard/lr_range_test")
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["step", "learning_rate", "loss", "smoothed_loss"])
    rows.writerows([p.step, p.rate, p.loss, p.smoothed] for p in points)
    files.write_text(f"{directory}/curve.csv", table.getvalue())
    files.write_text(f"{directory}/verdict.json", records.dump(verdict).decode())
    for p in points:
        values = {"learning_rate": p.rate, "loss": p.loss, "smoothed_loss": p.smoothed}
        summaries.scalars(p.step, {f"lr_range_test/{name}": values[name] for name in values})
    if title is not None:
        picture = draw(points, verdict, title)
        files.write_bytes(f"{directory}/curve.png", picture)
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
        self,
        cluster: Cluster,
        model: ModelDefinition,
        params: Params,
        data: data_set.DataSet,
        longest: int,
    ) -> None:
        """Prepare for at most `longest` steps from each start."""
        self._cluster, self._params, self._longest = cluster, params, longest
        self.state = state = create_train_state(cluster, model, params, data.manifest, longest)
        initial_weights.load_initial_weights(cluster, params, state.model)
        with cluster.strategy.scope():
            self._rates = tf.Variable(
                tf.zeros(longest),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        state.optimizer.rate = lambda step: tf.gather(self._rates, tf.maximum(step, 0))
        self._variables = [*state.model.variables, *state.optimizer.variables, state.step]
        self._first = [variable.numpy() for variable in self._variables]
        batches = pipeline.training_batches(data, cluster, params)
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
    train = partial(trainer.try_rate, steps=sweep.trial_steps)
    return explore(start, first, sweep.lowest, sweep.highest, train)


def draw(points: Sequence[Point], verdict: Verdict, title: str) -> bytes:
    """Return a PNG of the loss over the learning rate on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="learning rate", ylabel="training loss")
    axes.set_title(title, loc="left", pad=22)
    rates, losses = [point.rate for point in points], [point.loss for point in points]
    axes.plot(rates, losses, color=_RAW, linewidth=1, label="loss of each step")
    smoothed = verdict.smoothed
    axes.plot(rates[: len(smoothed)], smoothed, color=_LINE, linewidth=2, label="smoothed")
    if ends := {rate: loss for rate, loss in verdict.trials.items() if loss is not None}:
        axes.plot(list(ends), list(ends.values()), "o", color=_MARK, label="end of each trial")
    left, right = axes.get_xlim()
    axes.set_xlim(left, right)  # The regions reach the frame.
    good = verdict.good_from or right
    diverging = verdict.good_to if verdict.good_to and verdict.diverged else right
    edges = pairwise((left, good, diverging, right))
    for (name, colour), (begin, end) in zip(_REGIONS.items(), edges, strict=True):
        if begin < end:
            axes.axvspan(begin, end, color=colour, linewidth=0, zorder=0, label=name)
    if verdict.suggestion:
        axes.axvline(verdict.suggestion, color=_MARK, linestyle="--")
        axes.annotate(
            f"suggestion {verdict.suggestion:.2g}",
            (verdict.suggestion, 1.01),
            xycoords=("data", "axes fraction"),
            color=_MARK,
            ha="center",
            va="bottom",
        )
    if smoothed and points[0].loss > 0:
        # By the smoothed curve: one exploding step would flatten everything else.
        axes.set_ylim(0.0, _HEADROOM * min(max(smoothed), _HIGHEST * points[0].loss))
    axes.grid(True, alpha=0.3)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    picture = io.BytesIO()
    # Without its version, the same curve gives the same bytes.
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


# Conclude from a sweep of learning rates, and trials after it, which rates are good.
#
# A sweep spends one step on each rate: it shows where the loss falls and where it diverges, but not
# which rate trains well in a schedule. So trials train shortly at rates around its lowest loss. The
# sweep is Smith's (arXiv:1506.01186, section 3.3; arXiv:1803.09820, section 4), the thresholds are
# this package's own. All of it is plain numbers. `make bench ONLY=rates` compares the
# conclusions with a grid of trainings.

# A loss this many times the best one has diverged, as in the fastai library.
_DIVERGED = 4.0
# The first steps never end the sweep: one bad batch must not.
_EARLIEST_STOP = 10
# A fall smaller than this part of the first loss is noise.
_SMALLEST_FALL = 0.02
# A rise by this part of the whole fall counts as diverging.
_RISE_BEGUN = 0.05
# Half a decade.
_FACTOR = 10**0.5
_MOST_EACH_WAY = 6
# A training is good if its loss falls by this part of the best one's fall.
_GOOD = 0.9
# And about as good as the best by this part.
_EQUAL = 0.98
# The loss of guessing, times this: less than that does not show learning.
_LEARNT = 0.96
# rate -> the loss at the end of a short training; not finite if it diverged
Train = Callable[[float], float]


@dataclass(frozen=True)
class Verdict:
    """The boundaries of the regions, as learning rates, and the suggestion.

    Attributes:
        good_from: Where the good region begins; None without one, like the next two.
        good_to: Where the good region ends.
        suggestion: The suggested peak of a schedule.
        diverged: Whether sweep or trials reached the diverging region.
        reasons: The explanation, in sentences.
        smoothed: The curve that was judged.
        trials: The loss at the end of each trial by its rate; None where it was not finite.
    """

    good_from: float | None
    good_to: float | None
    suggestion: float | None
    diverged: bool
    reasons: tuple[str, ...]
    smoothed: tuple[float, ...]
    trials: dict[float, float | None] = field(default_factory=dict)


def conclude(
    reading: Reading, trials: Trials | None, steps: int, guessing: float | None
) -> Verdict:
    """Return the verdict; `steps` is a trial's length, `guessing` the loss of equal chances."""
    none = Verdict(None, None, None, reading.diverged, (reading.problem,), reading.smoothed)
    if trials is None:
        return none
    losses = {
        rate: loss if math.isfinite(loss) else None for rate, loss in sorted(trials.losses.items())
    }
    warnings = (reading.warning,) if reading.warning else ()
    suggestion = trials.suggestion if trials.learnt(guessing) else None
    if suggestion is None:
        reasons = (_why_none(trials, steps, guessing), *warnings)
        return dataclasses.replace(none, reasons=reasons, trials=losses)
    good = trials.good
    diverged = reading.diverged or good[-1] < max(losses)
    reasons = (*_reasons(trials, suggestion, steps), *warnings)
    return Verdict(good[0], good[-1], suggestion, diverged, reasons, reading.smoothed, losses)


def _why_none(trials: Trials, steps: int, guessing: float | None) -> str:
    lowest = trials.losses[trials.best]
    if not math.isfinite(lowest):
        return (
            f"no training of {steps} steps stays finite, from {min(trials.losses):.2g} to "
            f"{max(trials.losses):.2g}; the model or its loss is the cause, not the rate"
        )
    if trials.learnt(guessing):
        repeated = " and ".join(
            f"{loss:.3g} at {rate:.2g}" for rate, loss in trials.repeated.items()
        )
        return (
            f"how a training of {steps} steps ends is chance: the lowest loss is {lowest:.3g} at "
            f"{trials.best:.2g}, but with other batches {repeated}. Raise --trial-steps, or use "
            "another optimizer"
        )
    return (
        f"at no rate does the model learn more than how to guess in {steps} steps; the loss is "
        f"{lowest:.3g} at best, guessing has {guessing:.3g}. The labels don't belong to the "
        "inputs, or all inputs that reach the model are alike; on a hard task, raise "
        "--trial-steps"
    )


def _reasons(trials: Trials, suggestion: float, steps: int) -> list[str]:
    good, tried = trials.good, sorted(trials.losses)
    low = f"below {good[0]:.2g} a training of {steps} steps gets less far"
    if good[0] == tried[0]:
        low = f"the lowest rate that was tried, {good[0]:.2g}, is already good; lower --min-rate"
    high = f"above {good[-1]:.2g} it gets less far or diverges"
    if good[-1] == tried[-1]:
        high = f"up to {good[-1]:.2g} it didn't diverge; raise --max-rate to find the edge"
    best = f"at {trials.best:.2g} it ends lowest, with a loss of {trials.losses[trials.best]:.3g}"
    amid = "amid the rates that end about as low"
    if suggestion != trials.middle:
        amid = "which is good with other batches, too"
    middle = f"{suggestion:.2g}, {amid}, is a good peak"
    return [low, f"{best}; {middle} for a schedule with warm-up", high]


@dataclass(frozen=True)
class Point:
    """One step: its learning rate, its loss, and the running mean of the losses up to it."""

    step: int
    rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class Reading:
    """What a sweep shows.

    Attributes:
        smoothed: The curve, smoothed in both directions: a running mean alone lags, towards rates
            that are too high.
        first: The loss before any step.
        lowest: The rate at which the loss is lowest; None if it never fell.
        diverged: Whether it rose again after that, or became no number.
        problem: What is wrong with the curve, with its meaning; "" for one that can be used.
        warning: What is odd about a curve that can be used.
    """

    smoothed: tuple[float, ...]
    first: float
    lowest: float | None
    diverged: bool
    problem: str = ""
    warning: str = ""


def exponential_rates(lowest: float, highest: float, steps: int) -> list[float]:
    """Return `steps` rates from `lowest` to `highest` in a geometric sequence."""
    factor = math.log(highest / lowest) / (steps - 1)
    return [lowest * math.exp(factor * step) for step in range(steps)]


class Curve:
    """The points of a running sweep."""

    def __init__(self, smoothing: float) -> None:
        """Smooth with a running mean that keeps the part `smoothing`, 0 to below 1, each step."""
        self.points: list[Point] = []
        self._smoothing = smoothing

    def add(self, rate: float, loss: float) -> bool:
        """Add a step; return whether the sweep should continue."""
        step, losses = len(self.points), [*(point.loss for point in self.points), loss]
        smoothed = _running_means(losses, self._smoothing)[-1]
        self.points.append(Point(step, rate, loss, smoothed))
        if not math.isfinite(loss):
            return False
        best = min(point.smoothed for point in self.points)
        # Of the size of the best: a loss may be below 0.
        risen = smoothed - best > (_DIVERGED - 1.0) * abs(best)
        return step < _EARLIEST_STOP or not risen


def read(points: Sequence[Point], smoothing: float) -> Reading:
    """Read the curve of a sweep."""
    finite = [point for point in points if math.isfinite(point.loss)]
    if len(finite) < 3:
        smoothed = tuple(point.smoothed for point in finite)
        problem = (
            f"the loss was {points[-1].loss} at the rate {points[-1].rate:.3g}, almost from the "
            "start; the model or the data is the cause, not the rate"
        )
        return Reading(smoothed, math.nan, None, False, problem)
    losses = _smooth(finite, smoothing)
    lowest = min(range(len(losses)), key=losses.__getitem__)
    fall = losses[0] - losses[lowest]
    if fall < _SMALLEST_FALL * abs(losses[0]):
        problem = (
            f"the loss never fell (from {losses[0]:.4g} to {losses[lowest]:.4g} at best): no "
            "gradient reaches the weights, or the inputs don't determine the labels. Look for an "
            "error in the model, the labels or the input before you sweep to a higher rate"
        )
        return Reading(tuple(losses), losses[0], None, False, problem)
    rise = losses[lowest] + _RISE_BEGUN * fall
    rose = max(losses[lowest:]) >= rise
    ended = len(finite) < len(points)
    warning = ""
    if ended and not rose:
        warning = (
            f"the loss became {points[-1].loss} at {points[-1].rate:.2g} without having risen "
            "before; an operation of the model or an example is a likelier cause than the rate"
        )
    return Reading(tuple(losses), losses[0], finite[lowest].rate, rose or ended, warning=warning)


def _smooth(points: Sequence[Point], smoothing: float) -> list[float]:
    losses = [point.loss for point in points]
    # One spike at the end must not distort the points before it.
    ceiling = _DIVERGED * min(point.smoothed for point in points)
    clipped = [min(loss, max(ceiling, losses[0])) for loss in losses]
    backwards = _running_means(clipped[::-1], smoothing)[::-1]
    forwards = _running_means(clipped, smoothing)
    return [(a + b) / 2 for a, b in zip(forwards, backwards, strict=True)]


def _running_means(values: Sequence[float], smoothing: float) -> list[float]:
    mean, means = 0.0, []
    for count, value in enumerate(values, start=1):
        mean = smoothing * mean + (1.0 - smoothing) * value
        # Without the correction the mean would start near 0 (as in Adam, arXiv:1412.6980).
        means.append(mean / (1.0 - smoothing**count))
    return means


@dataclass(frozen=True)
class Trials:
    """The final loss of short trainings by their rates, and the loss before any step.

    `repeated` are the losses of second trainings, with other batches.
    """

    first: float
    losses: dict[float, float]
    repeated: dict[float, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The rate of the lowest loss, the lower one of equals."""
        return min(sorted(self.losses), key=lambda rate: _finite(self.losses[rate]))

    @property
    def good(self) -> list[float]:
        """The rates around the best one that are good, in their order."""
        return self._around_best(_GOOD)

    @property
    def middle(self) -> float:
        """The middle of the rates that are about as good as the best, which may be at an edge."""
        equal = self._around_best(_EQUAL)
        return math.sqrt(equal[0] * equal[-1])

    @property
    def suggestion(self) -> float | None:
        """The first rate whose second training was good, too; None if chance decides."""
        return next((rate for rate, loss in self.repeated.items() if self.falls(loss, _GOOD)), None)

    def falls(self, loss: float, part: float) -> bool:
        """Return whether the fall to `loss` is at least `part` of that to the lowest loss."""
        lowest = _finite(self.losses[self.best])
        return self.first - loss >= part * (self.first - lowest)

    def _around_best(self, part: float) -> list[float]:
        rates = sorted(self.losses)
        low = high = rates.index(self.best)
        while low > 0 and self.falls(self.losses[rates[low - 1]], part):
            low -= 1
        while high + 1 < len(rates) and self.falls(self.losses[rates[high + 1]], part):
            high += 1
        return rates[low : high + 1]

    def learnt(self, guessing: float | None) -> bool:
        """Return whether the best training is better than `guessing`, if that is known."""
        lowest = self.losses[self.best]
        return math.isfinite(lowest) and (guessing is None or lowest < _LEARNT * guessing)


def explore(start: float, first: float, lowest: float, highest: float, train: Train) -> Trials:
    """Train at `start` and by half decades up and down from it, as long as that is good.

    Then train again at the rate to suggest: a loss may be due to chance.
    """
    trials = Trials(first, {start: train(start)})
    for direction in (1, -1):
        for number in range(1, _MOST_EACH_WAY + 1):
            rate = start * _FACTOR ** (direction * number)
            if not lowest <= rate <= highest:
                break
            trials.losses[rate] = train(rate)
            # Where nothing was finite yet, lower rates may be.
            any_finite = direction > 0 or any(map(math.isfinite, trials.losses.values()))
            if not trials.falls(trials.losses[rate], _GOOD) and any_finite:
                break
    if math.isfinite(trials.losses[trials.best]):
        # Amid the best rates and, if that is not good, at the best one.
        for rate in (trials.middle, trials.best):
            if trials.suggestion is None and rate not in trials.repeated:
                trials.repeated[rate] = train(rate)
    return trials


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
