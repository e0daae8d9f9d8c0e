"""Train in loops of steps on the device, with the host's work alongside."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.schedule import CheckpointSchedule
from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.pipeline import training_batches
from tpu_training.errors import DivergedError, Interrupted
from tpu_training.loop.callbacks import Callback, LoopReport, started
from tpu_training.loop.compiled_loop import LoopFigures, create_train_loop, run_loop
from tpu_training.loop.flops import count_flops
from tpu_training.loop.pace import Pace
from tpu_training.loop.shutdown import ShutdownRequest
from tpu_training.loop.state import TrainState, total_steps
from tpu_training.models.params import Params

# What a loop has given, and when it began and ended.
_Done = tuple[LoopFigures, float, float]


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
) -> TrainResult:
    """Train from the state's step to the last one.

    Calls `validate` with the step every `evaluation_interval` steps, except at the last one, and
    ends early when `exhausted` then says so.

    Raises:
        DivergedError: The loss is not finite; the last checkpoint is kept.
        Interrupted: `shutdown` was requested; a checkpoint is saved.
    """
    steps = total_steps(params, data.manifest)
    step = int(state.step.numpy())
    loop = create_train_loop(cluster, params, state, training_batches(data, cluster, params, step))
    flops, pace, count = math.nan, Pace(), 0
    running: Future[_Done] | None = None
    loss = math.nan
    schedule = CheckpointSchedule(params.checkpoint_interval, checkpoints.record.history)

    def do(count: int) -> _Done:
        begun = time.monotonic()
        return run_loop(cluster, loop, count), begun, time.monotonic()

    if step and _is_due(step, params.evaluation_interval, steps):
        validate(step)  # The earlier run may have ended before it did.
    # Steps have a thread of their own: the host's work on a loop is done during the next one.
    with checkpoints, started(callbacks, step), ThreadPoolExecutor(1, "steps") as ahead:
        while step < steps and not exhausted(step):
            count = count if running else _length(params, pace, step, steps)
            figures, begun, ended = (running or ahead.submit(do, count)).result()
            loss, running = figures.loss, None
            flops = count_flops(cluster, loop, params) if math.isnan(flops) else flops
            if not math.isfinite(loss):
                raise DivergedError(
                    f"the loss became {loss} between step {step} and {step + count}; lower "
                    f"--learning_rate={params.learning_rate:g} or raise "
                    f"--warmup_fraction={params.warmup_fraction:g}; "
                    f"{checkpoints.describe_latest()}",
                    (step, step + count),
                )
            step += count
            pace.add(count, ended - begun)
            evaluates = _is_due(step, params.evaluation_interval, steps)
            ends, held = shutdown.requested and step < steps, 0.0
            notice = shutdown.take_notice()
            saves = step == steps or notice or schedule.is_due(step, evaluates)
            if saves:
                saving = time.monotonic()
                schedule.begin()
                checkpoints.save(step)
                held = time.monotonic() - saving
                schedule.saved(held)
            report = LoopReport(
                step=step,
                last_step=steps,
                count=count,
                seconds=ended - begun,
                checkpoint_seconds=held,
                loss=loss,
                metrics=state.counted.figures_of(figures.sums),
                flops=flops,
                gradient_norm=figures.gradient_norm,
                gradient_norms=dict(zip(state.paths, figures.variable_norms.tolist(), strict=True)),
                learning_rate=figures.learning_rate,
                input_seconds=figures.input_seconds,
            )
            for callback in callbacks:
                callback.before_loop(step, report)
            if step < steps and not (ends or evaluates):
                count = _length(params, pace, step, steps)
                running = ahead.submit(do, count)
            for callback in callbacks:
                callback.between_loops(step, report)
            # A request that came after the choice whether to save waits for the next loop.
            if ends:
                checkpoints.wait()
                raise Interrupted(f"{shutdown.reason}; step {step} is saved, start again to resume")
            if evaluates:
                try:
                    validate(step)
                except Interrupted:
                    if not saves:
                        checkpoints.save(step)
                    checkpoints.wait()
                    raise
                if exhausted(step) and not saves:
                    checkpoints.save(step)
    return TrainResult(step, loss)


def _length(params: Params, pace: Pace, step: int, steps: int) -> int:
    """Return the steps of the next loop: it ends when something is due, whatever its length."""
    intervals = (params.checkpoint_interval, params.evaluation_interval)
    until_due = [interval - step % interval for interval in intervals if interval]
    return min(params.steps_per_loop or steps, pace.most, steps - step, *until_due)


def _is_due(step: int, interval: int, steps: int) -> bool:
    return bool(interval) and step % interval == 0 < steps - step
