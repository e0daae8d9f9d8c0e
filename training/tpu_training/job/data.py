"""The data set of a job: files in a directory or bucket, or a function that gives the examples."""

import dataclasses
import logging
from contextlib import AbstractContextManager, nullcontext

from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NoTpu, Wait
from tpu_training.data.data_set import DataSet, check_readable
from tpu_training.data.function.call import is_function
from tpu_training.data.function.live import LiveFunction
from tpu_training.data.function.open import open_given
from tpu_training.data.manifest import TEST
from tpu_training.data.validation import hold_out, with_fraction
from tpu_training.errors import InputError
from tpu_training.job.job import Job
from tpu_training.job.repeatable import python_in, refuse_unrepeatable, trace
from tpu_training.models.params import EXACT
from tpu_training.tasks.choose import check_targets

logger = logging.getLogger(__name__)


def connect_and_open(
    workers: Addresses | LocalTpu | NoTpu,
    wait: Wait,
    job: Job,
    connecting: AbstractContextManager[object] | None = None,
) -> tuple[Cluster, Job, DataSet]:
    """Connect to `workers`, within `connecting`; open the data of `job`, less what it holds out.

    Files are looked at before any waiting. A function runs TensorFlow, which must know the devices.

    Raises:
        InputError: The data is no good, or the workers can't read it.
    """
    opened = None if is_function(job.data) else _open(job)
    with connecting or nullcontext():
        cluster = connect(workers, wait, job.params.local_devices)
    job, data = opened or _open(job)
    if data.function:
        _check_function(data.function, job, cluster)
    else:
        check_readable(data, cluster)
    return cluster, job, data


def _open(job: Job) -> tuple[Job, DataSet]:
    data = open_given(job.data, job.params.seed)
    check_targets(job.model, data.manifest.input_spec(job.params.image_size))
    if job.evaluates:
        data.manifest.split(TEST)
    if job.mode == "evaluate":
        return job, data
    job = dataclasses.replace(job, params=with_fraction(job.params, data.manifest))
    return job, hold_out(data, job.params)


def _check_function(live: LiveFunction, job: Job, cluster: Cluster) -> None:
    """Refuse a function that the workers can't run, or that a resumed job can't go on with."""
    graph = trace(live.function)
    if python := python_in(graph):
        if cluster.endpoint:
            raise InputError(
                f"{python}: runs Python for each example, which the workers at {cluster.endpoint} "
                "can't; write it with TensorFlow, or `tpu-training data convert` what it gives"
            )
        logger.warning(
            "data: %s runs Python for each example: a resumed job goes on exactly only if that "
            "gives the same in each pass over the same context.seed",
            python,
        )
    if job.params.order == EXACT:
        refuse_unrepeatable(graph, live.function.place)
