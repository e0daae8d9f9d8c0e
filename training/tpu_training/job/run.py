"""Run a job with TensorFlow: connect, train, evaluate, write the results."""

import logging

import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.model_description import describe_model
from tpu_training.checkpoints.record import JobRecord
from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint.target import Addresses, LocalTpu, NoTpu
from tpu_training.cluster.endpoint.wait import Wait
from tpu_training.data import files
from tpu_training.data.corruption import readable_part
from tpu_training.data.data_set import DataSet, check_readable, open_data
from tpu_training.errors import InputError
from tpu_training.job.hang_timer import HangTimer
from tpu_training.job.job import Job
from tpu_training.job.metrics import Metrics
from tpu_training.loop.evaluate import create_evaluation
from tpu_training.loop.shutdown import ShutdownRequest
from tpu_training.loop.state import create_train_state, total_steps
from tpu_training.loop.train import train
from tpu_training.monitoring.model_summaries import ModelSummaries
from tpu_training.monitoring.profiler import ProfileCapture, parse_steps
from tpu_training.monitoring.progress import Progress
from tpu_training.monitoring.report.write import write_report
from tpu_training.monitoring.scalars import Scalars
from tpu_training.monitoring.step_times import StepTimes
from tpu_training.monitoring.summaries import write_scalars

logger = logging.getLogger(__name__)


def run_on(
    workers: Addresses | LocalTpu | NoTpu,
    job: Job,
    wait: Wait,
    shutdown: ShutdownRequest,
    hang_timer: HangTimer,
) -> str:
    """Run `job` on `workers` and return a summary line."""
    parse_steps(job.params.profile_steps)
    data = open_data(job.data)
    files.check_bucket(job.model_dir, "--model-dir")
    hang_timer.watch(job.params.hang_timeout, first=wait.tries * wait.interval)
    cluster = connect(workers, wait, job.params.local_devices)
    check_readable(data, cluster)
    job.params.part_batch_size(cluster.replicas)
    job.params.replica_batch_size(cluster.replicas, "evaluation_batch_size")
    while True:
        try:
            return _run(cluster, job, data, shutdown, hang_timer)
        except tf.errors.OpError as error:
            # Restart from the last checkpoint: an aborted loop may have applied half a step.
            data = readable_part(data, job.params.skip_corrupt_records, error)


def _run(
    cluster: Cluster, job: Job, data: DataSet, shutdown: ShutdownRequest, hang_timer: HangTimer
) -> str:
    """Train, evaluate and write the results, as the mode requires."""
    state = create_train_state(
        cluster, job.model, job.params, data.manifest, total_steps(job.params, data.manifest)
    )
    record = JobRecord(job.model.name, job.params)
    checkpoints = Checkpoints(job.model_dir, state, record, job.params.keep_checkpoints, cluster)
    restored = checkpoints.restore_latest()
    if restored is None and not job.trains:
        raise InputError(
            f"--model-dir={job.model_dir}: contains no checkpoint to evaluate; train first"
        )
    if job.trains:
        spec = data.manifest.input_spec(job.params.image_size)
        describe_model(job.model, job.params, spec, job.data).write(job.model_dir)
    metrics = Metrics.of(cluster, job, data)
    with tf.device(cluster.this_process):
        writer = tf.summary.create_file_writer(f"{job.model_dir.rstrip('/')}/tensorboard")

    evaluate = create_evaluation(cluster, job.params, data, state) if job.evaluates else None

    def evaluate_now(step: int) -> None:
        if evaluate:
            evaluation = evaluate()
            write_scalars(writer, step, evaluation.scalars)
            metrics.add_evaluation(evaluation)
            if job.trains:
                best = checkpoints.keep_best(step, evaluation.accuracy, evaluation.loss)
                metrics.add_best(best)
            hang_timer.reset()

    try:
        if job.trains:
            progress = Progress(job.params.global_batch_size)
            callbacks = [
                hang_timer,
                progress,
                Scalars(writer, progress),
                StepTimes(writer),
                ModelSummaries(cluster, job.params, data, state, writer),
                ProfileCapture(
                    f"{job.model_dir.rstrip('/')}/tensorboard",
                    cluster.workers,
                    parse_steps(job.params.profile_steps),
                ),
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
                    evaluate_now,
                )
            metrics.add_training(result, progress)
        evaluate_now(int(state.step.numpy()))
        checkpoints.wait()
    finally:
        writer.close()
    summary = metrics.write(job.model_dir)
    if job.trains:
        with tf.device(cluster.this_process):
            logger.info("report: %s", write_report(job.model_dir))
    return summary
