"""Train in loops of steps on the device, while the host works on the loop before.

`train` is the loop, `create_train_loop` compiles it, `Pace` says how many steps it has and
`CheckpointSchedule` when to save. What one step does is in step.py.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.reader import JobHistory
from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.pipeline import NextBatch, TimedInput, training_batches
from tpu_training.errors import DataError, DivergedError, Interrupted
from tpu_training.loop.callbacks import Callback, LoopReport, ShutdownRequest, started
from tpu_training.loop.graph import count_flops, repeat
from tpu_training.loop.state import TrainState
from tpu_training.loop.step import create_replica_step, create_step_sums
from tpu_training.models.params import Params

# A preempted VM has 30 seconds from the notice to its end, in which a checkpoint must be written.
# https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
# The host's work is done during the next loop, so short loops cost nothing.
LOOP_SECONDS = 1.0
# The first loops of a start, before anything is measured: the very first one compiles the step.
FIRST_STEPS = 10
_LONG_FIRST_SECONDS = 30.0
# An assumption, before a job has seen failures of its own: about the rhythm that SkyPilot reports
# for spot TPUs (42 recoveries in a month).
TYPICAL_SECONDS_BETWEEN_FAILURES = 16 * 3600.0
# Between two checkpoints: before the cost of a save is measured, and at least.
FIRST_SECONDS, LEAST_SECONDS = 60.0, 10.0

# number of steps -> the fields of LoopFigures as one tensor: each one fetched is a round trip
TrainLoop = Callable[[tf.Tensor], tf.Tensor]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """The result of a training: all steps done, and the mean loss of the last loop."""

    steps: int
    loss: float


def train(
    cluster: Cluster,
    params: Params,
    data: DataSet,
    state: TrainState,
    checkpoints: Checkpoints,
    callbacks: Sequence[Callback],
    shutdown: ShutdownRequest,
    validate: Callable[[int], None] = lambda step: None,
    exhausted: Callable[[int], bool] = lambda step: False,
    observers: Sequence[Callback] = (),
    create_loop: Callable[..., TrainLoop] | None = None,
) -> TrainResult:
    """Train from the state's step to the last one.

    Calls `validate` with the step every `evaluation_interval` steps, except at the last one, and
    ends early when `exhausted` says so after a loop; no step runs then. `observers` are called like
    `callbacks`, but the caller starts and closes them. `create_loop` compiles the step for other
    devices than TensorFlow's.

    Raises:
        DivergedError: The loss is not finite; the last checkpoint is kept.
        Interrupted: `shutdown` was requested; a checkpoint is saved.
    """
    steps, batch = data.manifest.steps(params), params.global_batch_size
    step = int(state.step.numpy())
    if create_loop:
        loop = create_loop(cluster, params, state, data, step)
    else:
        batches = training_batches(data, cluster, params, step)
        loop = create_train_loop(cluster, params, state, batches)
    flops, pace, count, loss = math.nan, Pace(), 0, math.nan
    running: Future[tuple[LoopFigures, float]] | None = None
    schedule = CheckpointSchedule(params.checkpoint_interval, checkpoints.record.history)

    def run(count: int) -> tuple[LoopFigures, float]:
        begun = time.monotonic()
        return run_loop(cluster, loop, count), time.monotonic() - begun

    if step and _is_due(step, params.evaluation_interval, steps):
        validate(step)  # The earlier run may have ended before it did.
    # Steps have a thread of their own: the host's work on a loop is done during the next one.
    with checkpoints, started(callbacks, step), ThreadPoolExecutor(1, "steps") as ahead:
        while step < steps and (running or not exhausted(step)):
            if not running:
                count = _length(params, pace, step, steps, observers)
                _await_data(data, (step + count) * batch, checkpoints, step, shutdown)
            figures, seconds = (running or ahead.submit(run, count)).result()
            loss, running = figures.loss, None
            flops = count_flops(cluster, loop, params) if math.isnan(flops) else flops
            if not math.isfinite(loss):
                raise _diverged(loss, step, count, params, checkpoints)
            step += count
            evaluates = _is_due(step, params.evaluation_interval, steps)
            due = step == steps or (cluster.leads and schedule.is_due(step, evaluates))
            seconds, ends, saves = _agreed(cluster, shutdown, seconds, step < steps, due)
            pace.add(count, seconds)
            report = _report(state, figures, (step, steps, count), seconds, flops)
            try:
                for callback in (*callbacks, *observers):
                    callback.before_loop(step, report)
            finally:  # With the rate that they have set, also if one of them fails.
                if saves:
                    report = replace(report, checkpoint_seconds=_save(checkpoints, schedule, step))
            if step < steps and not (ends or evaluates or exhausted(step)):
                count = _length(params, pace, step, steps, observers)
                if not data.growth or data.growth.has((step + count) * batch):
                    running = ahead.submit(run, count)
            for callback in (*callbacks, *observers):
                callback.between_loops(step, report)
            # A request that came after the decision to save waits for the next loop.
            if ends:
                checkpoints.wait()
                raise Interrupted(f"{shutdown.reason}; step {step} is saved; start again to resume")
            if evaluates:
                with _saved_at_end(checkpoints, step, saves):
                    validate(step)
            if not (running or saves) and exhausted(step):
                checkpoints.save(step)
    return TrainResult(step, loss)


@contextmanager
def _saved_at_end(checkpoints: Checkpoints, step: int, saved: bool) -> Iterator[None]:
    """Save `step`, unless `saved`, before a request to end or missing data is reported."""
    try:
        yield
    except (DataError, Interrupted):
        if not saved:
            checkpoints.save(step)
        checkpoints.wait()
        raise


def _await_data(
    data: DataSet, examples: int, checkpoints: Checkpoints, step: int, shutdown: ShutdownRequest
) -> None:
    """Wait for the files of so many examples, which may still be converted."""
    if data.growth:
        with _saved_at_end(checkpoints, step, checkpoints.saved_step == step):
            data.growth.wait(examples, shutdown.check)


def _agreed(
    cluster: Cluster, shutdown: ShutdownRequest, seconds: float, may_end: bool, due: bool
) -> tuple[float, bool, bool]:
    """Return what all hosts decide alike: a loop's seconds, whether to end, whether to save."""
    asked, notice = shutdown.requested and may_end, shutdown.take_notice()
    seconds, ends, saves = cluster.agree(seconds, asked, notice or due)
    if ends:
        shutdown.join()
    return seconds, bool(ends), bool(saves)


def _diverged(
    loss: float, step: int, count: int, params: Params, checkpoints: Checkpoints
) -> DivergedError:
    return DivergedError(
        f"the loss became {loss} between step {step} and {step + count}; lower "
        f"--learning_rate={params.learning_rate:g} or raise "
        f"--warmup_fraction={params.warmup_fraction:g}; {checkpoints.describe_latest()}"
    )


def _save(checkpoints: Checkpoints, schedule: CheckpointSchedule, step: int) -> float:
    """Start a checkpoint; return for how many seconds that has held the steps."""
    begun = time.monotonic()
    schedule.begin()
    checkpoints.save(step)
    held = time.monotonic() - begun
    schedule.saved(held)
    return held


def _report(
    state: TrainState,
    figures: LoopFigures,
    steps: tuple[int, int, int],
    seconds: float,
    flops: float,
) -> LoopReport:
    counted, sums = state.counted, figures.sums
    # In `sums` the numbers come first, then the counts, which float64 holds exactly up to 2**53.
    metrics, _ = counted.figures(sums[: counted.numbers], sums[counted.numbers :])
    return LoopReport(
        *steps,
        loss=figures.loss,
        metrics=metrics,
        learning_rate=figures.learning_rate,
        seconds=seconds,
        input_seconds=figures.input_seconds,
        flops=flops,
        gradient_norm=figures.gradient_norm,
        gradient_norms=dict(zip(state.paths, figures.variable_norms.tolist(), strict=True)),
    )


def _length(
    params: Params, pace: Pace, step: int, steps: int, observers: Sequence[Callback]
) -> int:
    """Return the steps of the next loop: it ends when something is due, whatever its length."""
    own = (each.interval for each in observers)
    intervals = (params.checkpoint_interval, params.evaluation_interval, *own)
    until_due = [interval - step % interval for interval in intervals if interval]
    return min(params.steps_per_loop or steps, pace.most, steps - step, *until_due)


def _is_due(step: int, interval: int, steps: int) -> bool:
    return bool(interval) and step % interval == 0 < steps - step


class LoopFigures(NamedTuple):
    """What a loop of steps hands to the host.

    Attributes:
        learning_rate: The rate of the loop's last step.
        input_seconds: The time that the loop waited for input.
        gradient_norm: The mean of the steps' norms of the gradient, before it is clipped.
        variable_norms: The same of each variable's part of it.
        loss: The mean over the loop's examples.
        sums: The sums of the task's metrics; see Tally.
    """

    learning_rate: float
    input_seconds: float
    gradient_norm: float
    variable_norms: npt.NDArray[np.float64]
    loss: float
    sums: npt.NDArray[np.float64]


def run_loop(cluster: Cluster, loop: TrainLoop, count: int) -> LoopFigures:
    """Do `count` steps and wait for their end."""
    with cluster.on_loop_device():
        figures = loop(tf.constant(count)).numpy()
    rate, seconds, variables, norm = figures[:4].tolist()
    norms, (loss, *_) = figures[4 : 4 + int(variables)], figures[4 + int(variables) :]
    sums = figures[5 + int(variables) :]
    return LoopFigures(rate, seconds, norm / count, norms / count, float(loss) / count, sums)


def create_train_loop(
    cluster: Cluster, params: Params, state: TrainState, next_batch: NextBatch
) -> TrainLoop:
    """Return a compiled function that does a given number of steps on the device.

    Loss and metrics stay on the devices until its end: with a value that left them in each step,
    every step would wait for the host.
    """
    strategy = cluster.strategy
    batches = TimedInput(next_batch, cluster)
    with strategy.scope():
        sums = create_step_sums(state)
    replica_step = create_replica_step(params, state, sums)

    def step(_: tf.Tensor, nothing: tuple[()]) -> tuple[()]:
        strategy.run(replica_step, batches())
        return nothing

    def loop(count: tf.Tensor) -> tf.Tensor:
        for each in sums:
            each.assign(tf.zeros(each.shape, each.dtype), read_value=False)
        batches.reset()
        repeat(count, (), step)
        rate = state.optimizer.rate(state.step.read_value() - 1)
        first = [rate, batches.seconds(), len(state.variables)]
        parts = [tf.stack([tf.cast(each, tf.float64) for each in first])]
        parts += [tf.cast(each.read_value(), tf.float64) for each in sums]
        return tf.concat(parts, axis=0)

    compiled: TrainLoop = tf.function(loop, autograph=False)
    return compiled


class Pace:
    """How many steps a loop may have, so that a notice is noticed in time.

    The seconds that a step of the last loop took decide.
    """

    def __init__(self) -> None:
        self._loops = 0
        self._most = FIRST_STEPS

    @property
    def most(self) -> int:
        """The steps that take LOOP_SECONDS, at least one."""
        return self._most

    def add(self, steps: int, seconds: float) -> None:
        """Learn from a loop of `steps` that took `seconds`."""
        self._loops += 1
        if self._loops == 1:
            # Either it took long to compile or its steps are slow: the next one tells.
            self._most = 1 if seconds > _LONG_FIRST_SECONDS else FIRST_STEPS
            return
        self._most = max(1, int(LOOP_SECONDS * steps / max(seconds, 1e-6)))


class CheckpointSchedule:
    """Says after which loops a checkpoint is due.

    Young's first-order optimum is √(2 · cost of a save · mean time between failures): J. W. Young,
    "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974,
    https://doi.org/10.1145/361147.361115.
    """

    def __init__(
        self, steps: int, history: JobHistory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Save every `steps` steps or, where that is 0, by Young's formula from `history`."""
        self._steps = steps
        self._history = history
        self._clock = clock
        self._before = history.seconds
        self._begun = self._last = clock()
        self._cost: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds between two checkpoints."""
        if self._cost is None:
            return FIRST_SECONDS
        between_failures = (TYPICAL_SECONDS_BETWEEN_FAILURES + self._history.seconds) / max(
            1, self._history.starts
        )
        return max(LEAST_SECONDS, math.sqrt(2 * self._cost * between_failures))

    def is_due(self, step: int, evaluates: bool = False) -> bool:
        """Return whether to save at `step`, after which the job perhaps `evaluates` for long."""
        if self._steps:
            return step % self._steps == 0
        return evaluates or self._clock() - self._last >= self.seconds

    def begin(self) -> None:
        """Note the time that the job has run until now; call it before saving."""
        self._history.seconds = self._before + self._clock() - self._begun

    def saved(self, cost: float) -> None:
        """Learn that a save has kept the training waiting for `cost` seconds."""
        first, self._last = self._cost is None, self._clock()
        self._cost = cost
        if first and not self._steps:
            logger.info(
                "checkpoint: every %.0f s, because a save takes %.2f s and this is start %d in "
                "%.1f hours (--checkpoint_interval=0)",
                self.seconds,
                cost,
                self._history.starts,
                self._history.seconds / 3600,
            )
