"""Run a job with TensorFlow: connect, train, evaluate, write the results."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import closing

import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.initial_weights import load_initial_weights
from tpu_training.checkpoints.lease import Lease, hold
from tpu_training.checkpoints.model_description import describe_model, refuse_another_purpose
from tpu_training.checkpoints.reader import JobRecord, restore_averages
from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NoTpu, Wait
from tpu_training.compile.tpus import tpus, unknown_tpu
from tpu_training.data import files
from tpu_training.data.corruption import readable_part
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import training_batches
from tpu_training.errors import DivergedError, InputError
from tpu_training.goodput.ledger import Beginning
from tpu_training.job.data import connect_and_open
from tpu_training.job.job import Job, Result
from tpu_training.job.results import Evaluations, Metrics
from tpu_training.job.supervision import HangTimer
from tpu_training.loop.callbacks import Callback, History, LoopReport, ShutdownRequest, started
from tpu_training.loop.evaluation import create_prediction
from tpu_training.loop.state import create_train_state, total_steps
from tpu_training.loop.train import FIRST_STEPS, create_train_loop, run_loop, train
from tpu_training.models.params import Params
from tpu_training.models.registry import load_file
from tpu_training.monitoring.measurements import (
    COST_NOTE,
    LedgerWriter,
    Scalars,
    StepTimes,
    Utilisation,
    write_report,
)
from tpu_training.monitoring.model_summaries import ModelSummaries
from tpu_training.monitoring.profiler import ProfileCapture, parse_steps
from tpu_training.monitoring.summaries import Summaries
from tpu_training.monitoring.terminal import Progress
from tpu_training.monitoring.trackers import Tracker

logger = logging.getLogger(__name__)


def run_on(
    workers: Addresses | LocalTpu | NoTpu,
    job: Job,
    wait: Wait,
    shutdown: ShutdownRequest,
    hang_timer: HangTimer,
    beginning: Beginning | None = None,
) -> Result:
    """Run `job` on `workers`; `beginning` measures what comes before the first loop."""
    beginning = beginning or Beginning()
    parse_steps(job.params.profile_steps)
    files.check_bucket(job.model_dir, "--model-dir")
    hang_timer.watch(job.params.hang_timeout, first=wait.tries * wait.interval)
    connecting = beginning.measure("connect")
    cluster, job, data = connect_and_open(workers, wait, job, connecting)
    job.params.part_batch_size(cluster.replicas)
    job.params.replica_batch_size(cluster.replicas, "evaluation_batch_size")
    hang_timer.watch_workers(cluster.workers)
    with hold(job.model_dir, job.trains) as lease:
        while True:
            try:
                return _run(cluster, job, data, shutdown, hang_timer, beginning, lease)
            except DivergedError as error:
                raise explain(error, cluster, job, data) from error
            except tf.errors.OpError as error:
                # Restart from the last checkpoint: an aborted loop may have applied half a step.
                connect.cache_clear()
                skipped = job.params.skip_corrupt_records
                data = readable_part(data, skipped, error, hang_timer.reset)


def _run(
    cluster: Cluster,
    job: Job,
    data: DataSet,
    shutdown: ShutdownRequest,
    hang_timer: HangTimer,
    beginning: Beginning,
    lease: Lease,
) -> Result:
    """Train, evaluate and write the results, as the mode requires."""
    observers, peak = create_observers(job) if job.trains else [], peak_flops(job, cluster)
    relay = Relay(observers)
    spec = data.manifest.input_spec(job.params.image_size)
    refuse_another_purpose(job.model_dir, spec, job.data, job.model)
    state = create_train_state(
        cluster, job.model, job.params, data.manifest, total_steps(job.params, data.manifest)
    )
    record = JobRecord(job.model.name, job.params)
    checkpoints = Checkpoints(
        job.model_dir, state, record, job.params.keep_checkpoints, cluster, lease
    )
    with beginning.measure("restore"):
        restored = checkpoints.restore_latest()
    hang_timer.saved_step = lambda: checkpoints.saved_step
    if restored is None and not job.trains:
        raise InputError(
            f"--model-dir={job.model_dir}: contains no checkpoint to evaluate; train first"
        )
    if restored and not job.trains and state.average is None:
        restore_averages(state.model, restored)
    if job.trains:
        if restored is None:
            load_initial_weights(cluster, job.params, state.model)
            if state.average:
                state.average.reset()
        log_plan(job.params, data, int(state.step.numpy()))
        names = data.manifest.class_names
        describe_model(job.model, job.params, spec, job.data, names).write(job.model_dir)
    metrics, history = Metrics.of(cluster, job, data), History()
    summaries = Summaries(f"{job.model_dir.rstrip('/')}/tensorboard")
    pictures = ModelSummaries(cluster, job.params, data, state, summaries)
    checkpoints.copied = pictures.copied
    evaluations = Evaluations(
        cluster,
        job,
        data,
        state,
        checkpoints,
        metrics,
        summaries,
        relay,
        pictures,
        shutdown.check,
    )
    times = StepTimes(summaries, beginning)
    ledger = LedgerWriter(job.model_dir, times, beginning.begun, summaries, shutdown.why)

    def validate(step: int) -> None:
        with times.evaluating():
            evaluations.validate(step)
        hang_timer.reset()

    # Whatever fails from here on, what is being written is waited for before the lease ends.
    with closing(summaries), started(observers, int(state.step.numpy())), checkpoints:
        if job.trains:
            speed = Utilisation(summaries, peak)
            progress = Progress(job.params.global_batch_size)
            callbacks = [
                Held(lease),
                hang_timer,
                progress,
                Scalars(summaries, progress),
                times,
                ledger,
                speed,
                pictures,
                history,
                ProfileCapture(
                    f"{job.model_dir.rstrip('/')}/tensorboard",
                    cluster.workers,
                    parse_steps(job.params.profile_steps),
                ),
                relay,
            ]
            with shutdown:
                result = train(
                    cluster,
                    job.params,
                    data,
                    state,
                    checkpoints,
                    callbacks,
                    shutdown,
                    validate,
                    evaluations.exhausted,
                )
            metrics.add_training(result, progress)
            metrics.values.update(speed.figures)
        step = int(state.step.numpy())
        validate(step)
        with times.evaluating():
            evaluations.test(step)
        if job.trains:
            ledger.finish()
        hang_timer.reset()
    lease.confirm()
    summary, values = metrics.write(job.model_dir)
    if job.trains:
        with tf.device(cluster.this_process):
            logger.info("report: %s", write_report(job.model_dir))
        if note := os.environ.get(COST_NOTE):
            logger.info("cost: %s", note)
    if state.average:
        with cluster.on_loop_device():
            state.average.swap()  # Nothing trains any more.
    predict = create_prediction(cluster, job.params, state, spec)
    return Result(summary, values, history.rows, state.model, job.model_dir, predict)


# --- Say before the first step what a training is going to do, and whether that is worth anything.

# Below this the warm-up alone is over before a moment of adam has settled.
_FEW_STEPS = 50
_ENOUGH_STEPS = 200


def log_plan(params: Params, data: DataSet, step: int) -> None:
    """Log the number of steps from `step` on; warn when they are too few to learn from."""
    examples, steps = data.manifest.split("train").examples, total_steps(params, data.manifest)
    if step >= steps:
        return
    logger.info(
        "plan: %g epochs of %d examples in batches of %d are %d steps; the first %d, which a line "
        "follows, include compiling the step",
        params.epochs,
        examples,
        params.global_batch_size,
        steps,
        min(params.steps_per_loop or steps, FIRST_STEPS, steps - step),
    )
    if steps < _FEW_STEPS:
        logger.warning("plan: %d steps are few to learn from: %s", steps, _cure(params, examples))


def _cure(params: Params, examples: int) -> str:
    epochs = params.global_batch_size * _ENOUGH_STEPS / examples
    cure = f"raise --epochs (to {epochs:.0f} for {_ENOUGH_STEPS} steps)"
    batch = 1 << max(int(params.epochs * examples / _ENOUGH_STEPS), 1).bit_length() - 1
    if batch < params.global_batch_size:
        cure += f" or lower --global_batch_size (to {batch})"
    return cure


# --- What watches a job from its first loop to its last evaluation: a user's callbacks, trackers.

# What TPU VMs set for libtpu.
_TYPE_VARIABLE = "TPU_ACCELERATOR_TYPE"


def create_observers(job: Job) -> list[Callback]:
    """Return the job's tracker and its user's callbacks, from a file and from Python.

    Raises:
        InputError: A file has no `create_callbacks`, or that gives something else.
    """
    params = job.params
    tracked = [Tracker(params.tracker, job.model_dir, dataclasses.asdict(params))]
    return [*(tracked if params.tracker else ()), *_own(job), *job.callbacks]


def _own(job: Job) -> Sequence[Callback]:
    path = job.params.callback
    if not path:
        return ()
    create = getattr(load_file(path, "callback"), "create_callbacks", None)
    if not callable(create):
        raise InputError(f"--callback={path}: lacks a function `create_callbacks(job)`")
    made = create(job)
    if not isinstance(made, Sequence) or not all(isinstance(each, Callback) for each in made):
        raise InputError(
            f"--callback={path}: create_callbacks returned {made!r}, expected a list of "
            "tpu_training.loop.callbacks.Callback"
        )
    return made


class Relay(Callback):
    """Hands the loops of a training to `observers`, which live longer than it."""

    def __init__(self, observers: Sequence[Callback]) -> None:
        """Tell `observers`, in this order."""
        self._observers = observers

    def before_loop(self, step: int, report: LoopReport) -> None:
        """Hand on the loop before the next one starts."""
        for observer in self._observers:
            observer.before_loop(step, report)

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Hand on the loop."""
        for observer in self._observers:
            observer.between_loops(step, report)

    def after_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Hand on the evaluation."""
        for observer in self._observers:
            observer.after_evaluation(step, figures)


def peak_flops(job: Job, cluster: Cluster) -> float:
    """Return the peak of all replicas, bfloat16 operations a second; 0 where it is unknown.

    Raises:
        InputError: --tpu_type is no TPU type.
    """
    named = job.params.tpu_type or os.environ.get(_TYPE_VARIABLE, "")
    if job.params.tpu_type and named not in tpus():
        raise InputError(unknown_tpu("tpu_type", named))
    if not cluster.has_tpu or named not in tpus():
        return 0.0
    return tpus()[named].peak_flops * cluster.replicas


# --- Find out what made a loss that is not finite: the learning rate, or the model and its data.


def explain(error: DivergedError, cluster: Cluster, job: Job, data: DataSet) -> DivergedError:
    """Return `error`, or one that says that no learning rate is to blame.

    Repeats the steps in which it happened with new weights and a learning rate of 0: what is not
    finite then comes from the model or from the examples.
    """
    if error.steps is None:
        return error
    first, last = error.steps
    # The look takes minutes on a TPU, and may be ended.
    logger.warning("diverged: %s; looking whether the learning rate is to blame", error)
    try:
        loss = _loss_without_learning(cluster, job, data, first, last - first)
    except tf.errors.OpError:  # Such as the device's memory, which now holds two models.
        return error
    if math.isfinite(loss):
        return error
    return DivergedError(
        f"the loss became {loss} between step {first} and {last}, and it is so with a learning "
        "rate of 0 as well: the model or the data makes it, not the rate. Look for a division by "
        "0, a logarithm or square root of 0 or less, an exponential without a limit, or a loss "
        "that does so; tf.debugging.enable_check_numerics() in the model's file names the "
        "operation",
        error.steps,
    )


def _loss_without_learning(
    cluster: Cluster, job: Job, data: DataSet, step: int, count: int
) -> float:
    steps = total_steps(job.params, data.manifest)
    state = create_train_state(cluster, job.model, job.params, data.manifest, steps)
    state.optimizer.rate = lambda _: tf.constant(0.0)
    state.step.assign(step)
    batches = training_batches(data, cluster, job.params, step)
    loop = create_train_loop(cluster, job.params, state, batches)
    return run_loop(cluster, loop, count).loss


# --- End a training whose model directory another process has taken over.


class Held(Callback):
    """Ends the training before its next write once `lease` is lost."""

    def __init__(self, lease: Lease) -> None:
        """Ask `lease` after each loop."""
        self._lease = lease

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Raise LeaseError if the lease is lost."""
        self._lease.check()
