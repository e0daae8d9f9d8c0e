"""The data set of a job: files in a directory or bucket, or a function that gives the examples."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import AbstractContextManager, nullcontext

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NoTpu, Wait
from tpu_training.data.data_set import DataSet, check_readable, open_given
from tpu_training.data.function import DataFunction, LiveFunction
from tpu_training.data.manifest import TEST, TRAIN, is_function
from tpu_training.data.validation import hold_out, with_fraction
from tpu_training.errors import InputError
from tpu_training.errors.catalog import users_line
from tpu_training.job.job import Job
from tpu_training.loop.graph import operations
from tpu_training.models.params import EXACT
from tpu_training.tasks import check_targets

_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")

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
    """Refuse a function that the workers can't run, or that a resumed job can't continue."""
    graph = trace(live.function)
    if python := python_in(graph):
        if cluster.endpoint:
            raise InputError(
                f"{python}: runs Python for each example, which the workers at {cluster.endpoint} "
                "can't; write it with TensorFlow, or `tpu-training data convert` what it gives"
            )
        logger.warning(
            "data: %s runs Python for each example: a resumed job continues exactly only if that "
            "gives the same in each pass over the same context.seed",
            python,
        )
    if job.params.order == EXACT:
        refuse_unrepeatable(graph, live.function.place)


def trace(function: DataFunction) -> tf.Graph:
    """Return the graph of the training examples. Raises InputError with the user's line."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def rows(seed: tf.Tensor) -> tf.data.Dataset:
        return function.in_graph(TRAIN, seed)

    return rows.get_concrete_function(tf.TensorSpec((), tf.int64)).graph


def python_in(graph: tf.Graph) -> str:
    """Return FILE:LINE of what runs Python for each example in `graph`, or ""."""
    return next((_where(found) for found in operations(graph) if found.type in _PYTHON), "")


def refuse_unrepeatable(graph: tf.Graph, place: str) -> None:
    """Raise InputError with everything in `graph` that another pass would do differently.

    A resumed job reads the epoch from its beginning and leaves out what was seen. So the epoch must
    depend on context.seed alone, not on operations with a state or on which thread is first.
    """
    found = {
        f"{_where(operation) or place}: {reason}": None
        for operation in operations(graph)
        if (reason := _why(operation))
    }
    if found:
        raise InputError(
            f"{'; '.join(found)}; or give --order=fast, with which a resumed job continues after "
            "as many examples, but with others"
        )


def _why(operation: tf.Operation) -> str:
    attributes = operation.node_def.attr
    if _draws_its_seed(operation):
        return f"{operation.type} has no seed; give it seed=context.seed"
    if operation.op_def.is_stateful and ("seed2" in attributes or "Rng" in operation.type):
        return (
            f"{operation.type} draws other numbers once a job was resumed; use tf.random.stateless_"
            "… or tf.image.stateless_random_… with context.seed"
        )
    if attributes["deterministic"].s == b"false" or attributes["sloppy"].b:
        return "gives examples in the order in which threads are ready; leave out deterministic"
    return ""


def _draws_its_seed(operation: tf.Operation) -> bool:
    """Return whether a data set that draws was given no seed, for which 0 and 0 stand."""
    names = [argument.name for argument in operation.op_def.input_arg]
    inputs = dict(zip(names, operation.inputs, strict=False))
    seeds = [inputs[name] for name in ("seed", "seed2") if name in inputs]
    return len(seeds) == 2 and all(tf.get_static_value(seed) == 0 for seed in seeds)


def _where(operation: tf.Operation) -> str:
    """Return FILE:LINE of the user's code that made `operation`, or ""."""
    return users_line((frame.filename, frame.lineno) for frame in reversed(operation.traceback))
