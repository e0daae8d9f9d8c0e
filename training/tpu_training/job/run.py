"""Run a job with TensorFlow: connect, train, evaluate, write the results."""

import logging
import os
from contextlib import closing

import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.initial_weights import load_initial_weights
from tpu_training.checkpoints.lease import Lease, hold
from tpu_training.checkpoints.model_description import describe_model, refuse_another_purpose
from tpu_training.checkpoints.reader import JobRecord, restore_averages
from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NoTpu, Wait
from tpu_training.data import files
from tpu_training.data.corruption import readable_part
from tpu_training.data.data_set import DataSet
from tpu_training.errors import DivergedError, InputError
from tpu_training.goodput.ledger import Beginning
from tpu_training.job.data import connect_and_open
from tpu_training.job.divergence import explain
from tpu_training.job.evaluations import Evaluations
from tpu_training.job.hang_timer import HangTimer
from tpu_training.job.job import Job
from tpu_training.job.metrics import Metrics
from tpu_training.job.observers import Relay, create_observers, peak_flops
from tpu_training.job.plan import log_plan
from tpu_training.job.result import Result
from tpu_training.loop.callbacks import History, ShutdownRequest, started
from tpu_training.loop.evaluation import create_prediction
from tpu_training.loop.held import Held
from tpu_training.loop.state import create_train_state, total_steps
from tpu_training.loop.train import train
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
