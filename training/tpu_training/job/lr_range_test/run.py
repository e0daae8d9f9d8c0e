"""Run the range test: connect, sweep, judge, write the results."""

import csv
import dataclasses
import io
import json
import logging
import math
from collections.abc import Sequence

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NoTpu, Wait
from tpu_training.data import files
from tpu_training.data.corruption import readable_part
from tpu_training.data.data_set import DataSet
from tpu_training.job.data import connect_and_open
from tpu_training.job.job import Job
from tpu_training.job.lr_range_test.curve import Point, read
from tpu_training.job.lr_range_test.sweep import RateTrainer, Sweep, run_sweep, run_trials
from tpu_training.job.lr_range_test.verdict import Verdict, conclude
from tpu_training.monitoring.summaries import Summaries
from tpu_training.tasks.choose import task_of

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
    """Sweep, then try the rates around the lowest loss."""
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
    from tpu_training.job.lr_range_test.plot import draw

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
