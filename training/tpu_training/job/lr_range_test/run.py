"""Run the range test: connect, sweep, judge, write the results."""

import csv
import dataclasses
import io
import json
import logging
from collections.abc import Sequence

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint.target import Addresses, LocalTpu, NoTpu
from tpu_training.cluster.endpoint.wait import Wait
from tpu_training.data import files
from tpu_training.data.corruption import readable_part
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.job.job import Job
from tpu_training.job.lr_range_test.curve import Point, Verdict, judge
from tpu_training.job.lr_range_test.sweep import Sweep, run_sweep
from tpu_training.monitoring.summaries import write_picture, write_scalars

logger = logging.getLogger(__name__)


def connect_and_run(
    workers: Addresses | LocalTpu | NoTpu, wait: Wait, job: Job, sweep: Sweep, plot: bool
) -> Verdict:
    """Connect to `workers` and run the test there."""
    data = open_data(job.data)
    files.check_bucket(job.model_dir, "--model-dir")
    cluster = connect(workers, wait, job.params.local_devices)
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
    points = run_sweep(cluster, job.model, job.params, data, sweep)
    verdict = judge(points, sweep.smoothing)
    title = (
        f"Learning-rate range test: {job.model.name} on {data.manifest.name}, "
        f"batch {job.params.global_batch_size}"
    )
    picture = _write(f"{model_dir}/lr_range_test", points, verdict, title if plot else None)
    with tf.device(cluster.this_process):
        writer = tf.summary.create_file_writer(f"{model_dir}/tensorboard/lr_range_test")
        _show_in_tensorboard(writer, points, picture)
    for reason in verdict.reasons:
        logger.info("lr-range-test: %s", reason)
    suggestion = verdict.suggestion and f"{verdict.suggestion:.2g}"
    print(
        f"lr-range-test finished suggestion={suggestion} steps={len(points)} "
        f"results={model_dir}/lr_range_test",
        flush=True,
    )
    return verdict


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
    writer: tf.summary.SummaryWriter, points: Sequence[Point], picture: bytes | None
) -> None:
    """Write the plot, and three curves over the steps, TensorBoard's only axis."""
    for point in points:
        values = {
            "lr_range_test/learning_rate": point.rate,
            "lr_range_test/loss": point.loss,
            "lr_range_test/smoothed_loss": point.smoothed,
        }
        write_scalars(writer, point.step, values)
    if picture is not None:
        write_picture(writer, len(points), "lr_range_test/curve", picture)
    writer.close()
