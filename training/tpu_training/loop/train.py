"""Train in loops of steps on the device, with the host's work between them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import training_batches
from tpu_training.data.input.timed import TimedInput
from tpu_training.errors import DivergedError, Interrupted
from tpu_training.loop.callbacks import Callback, LoopReport, started
from tpu_training.loop.compiled_loop import create_train_loop
from tpu_training.loop.shutdown import ShutdownRequest
from tpu_training.loop.state import TrainState, total_steps
from tpu_training.models.params import Params


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
    evaluate_now: Callable[[int], None] = lambda step: None,
) -> TrainResult:
    """Train from the state's step to the last one.

    Calls `evaluate_now` with the step every `evaluation_interval` steps, except at the last one.

    Raises:
        DivergedError: The loss is not finite; the last checkpoint is kept.
        Interrupted: `shutdown` was requested; a checkpoint is saved.
    """
    steps = total_steps(params, data.manifest)
    step = int(state.step.numpy())
    batches = TimedInput(training_batches(data, cluster, params, step), cluster)
    loop = create_train_loop(cluster, params, state, batches)
    loss = math.nan
    with checkpoints, started(callbacks, step):
        while step < steps:
            # Loops end when something is due, so that intervals hold for every loop length.
            intervals = (params.checkpoint_interval, params.evaluation_interval)
            until_due = min(interval - step % interval for interval in intervals if interval)
            count = min(params.steps_per_loop, steps - step, until_due)
            begun = time.monotonic()
            with cluster.on_loop_device():
                loss, accuracy = (float(mean) for mean in loop(tf.constant(count)))
            ended = time.monotonic()
            if not math.isfinite(loss):
                raise DivergedError(
                    f"the loss became {loss} between step {step} and {step + count}; lower "
                    f"--learning_rate={params.learning_rate:g} or raise "
                    f"--warmup_fraction={params.warmup_fraction:g}; "
                    f"{checkpoints.describe_latest()}"
                )
            step += count
            if step == steps or step % params.checkpoint_interval == 0 or shutdown.requested:
                checkpoints.save(step)
            saved = time.monotonic()
            report = LoopReport(
                step=step,
                last_step=steps,
                count=count,
                loss=loss,
                accuracy=accuracy,
                learning_rate=float(state.optimizer.rate(step - 1)),
                seconds=ended - begun,
                checkpoint_seconds=saved - ended,
                input_seconds=batches.seconds_since_last_call(),
            )
            for callback in callbacks:
                callback.between_loops(step, report)
            if shutdown.requested and step < steps:
                checkpoints.wait()
                raise Interrupted(f"received SIGTERM; step {step} is saved, start again to resume")
            if params.evaluation_interval and step % params.evaluation_interval == 0 < steps - step:
                evaluate_now(step)
    return TrainResult(step, loss)
