"""Run a job with TensorFlow: connect, restore, train, evaluate, write the results."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

import tensorflow as tf

import tpu_training.checkpoints.initial_weights as initial_weights
import tpu_training.checkpoints.model_description as model_description
import tpu_training.checkpoints.reader as reader
import tpu_training.data.function as data_function
import tpu_training.monitoring.measurements as measurements
from tpu_core.lease import FILE_NAME, Right, hold
from tpu_core.ledger import Beginning
from tpu_training import errors, tasks
from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.cluster import google, hosts
from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint import Wait, Workers
from tpu_training.cluster.jax_devices import connect_jax
from tpu_training.compile.answer import tpus, unknown_tpu
from tpu_training.data import conversion, data_set, files, inspection, manifest, validation
from tpu_training.job.job import Job, Result
from tpu_training.job.supervision import HangTimer, end_without_host
from tpu_training.loop.callbacks import (
    Callback,
    Control,
    LoopReport,
    ShutdownRequest,
    checked,
    started,
)
from tpu_training.loop.evaluation import (
    Evaluation,
    EvaluationLoop,
    create_evaluation,
    create_prediction,
    evaluate_given,
)
from tpu_training.loop.graph import operations
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import FIRST_STEPS, TrainLoop, TrainResult, train
from tpu_training.models.params import FAST, JAX, STREAM, Params
from tpu_training.models.registry import load_file
from tpu_training.monitoring import terminal

# Changes of metrics.json and classes.json that a reader would notice get a new number.
_FORMAT = 1
# With fewer steps than this, warm-up and Adam's moments have hardly settled.
_FEW_STEPS, _ENOUGH_STEPS = 50, 200
# What TPU VMs set for libtpu.
_TYPE_VARIABLE = "TPU_ACCELERATOR_TYPE"
_SUMMARY = ("test_loss", "steps", "steps_per_second", "replicas")

logger = logging.getLogger(__name__)


def run_on(
    workers: Workers,
    job: Job,
    wait: Wait,
    shutdown: ShutdownRequest,
    hang_timer: HangTimer,
    beginning: Beginning | None = None,
) -> Result:
    """Run `job` on `workers`; `beginning` measures what comes before the first loop."""
    beginning = beginning or Beginning()
    files.check_bucket(job.model_dir, "--model-dir")
    # A TPU that is being created may take all tries; that is no hang.
    hang_timer.watch(job.params.hang_timeout, first=wait.tries * wait.interval)
    connecting = beginning.measure("connect")
    with hosts.watching(end_without_host) if job.params.backend == JAX else nullcontext():
        cluster, job, data = connect_and_open(workers, wait, job, connecting, hang_timer.reset)
        # Only the cluster knows among how many replicas a batch must divide.
        job.params.part_batch_size(cluster.replicas)
        job.params.replica_batch_size(cluster.replicas, "evaluation_batch_size")
        hang_timer.watch_workers(cluster.workers)
        with hold(job.model_dir, job.trains and cluster.leads, google.bucket) as lease:
            try:
                with step_by_step(job.params, cluster):
                    check_hosts(cluster, job, data)
                    return Trainer(cluster, job, data, shutdown, hang_timer, beginning, lease).run()
            except tf.errors.OpError as error:
                # The next job of this process connects again: a worker may be lost.
                connect.cache_clear()
                inspection.blame_data(data, error, hang_timer.reset)
                raise


def check_hosts(cluster: Cluster, job: Job, data: data_set.DataSet) -> None:
    """Raise InputError where the hosts have not begun the same job in the same place."""
    if cluster.processes == 1:
        return
    begun = {
        f"--data={job.data}: is not the same dataset": repr(data.manifest),
        f"--model={job.model.name}: has other parameters": repr(sorted(vars(job.params).items())),
    }
    for what, content in begun.items():
        if len({*cluster.spread(zlib.crc32(content.encode()))}) > 1:
            raise errors.InputError(
                f"{what} on every host; start the same command with the same files on all of them"
            )
    folder = job.model_dir.rstrip("/")
    leased = job.trains and (folder.startswith("gs://") or not google.is_bucket(folder))
    # By now host 0 holds it.
    if any(cluster.agree(leased and not tf.io.gfile.exists(f"{folder}/{FILE_NAME}"))):
        raise errors.InputError(
            f"--model-dir={job.model_dir}: not every host sees what host 0 writes there; name a "
            "folder of a bucket, gs://BUCKET/FOLDER"
        )


@contextmanager
def step_by_step(params: Params, cluster: Cluster) -> Iterator[None]:
    """Let no function be compiled where `params` ask for that.

    Raises:
        InputError: The steps run on a TPU, which has no Python.
    """
    if params.eager and cluster.has_tpu:
        raise errors.InputError("--eager=true runs on a CPU or GPU, not on a TPU; omit it")
    if not params.eager:
        yield
        return
    log = logging.getLogger("tensorflow")
    level, before = log.level, tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    # In each step, TensorFlow would warn that this is slow.
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though", UserWarning)
            yield
    finally:
        tf.config.run_functions_eagerly(before)
        log.setLevel(level)


class Trainer:
    """One attempt at a job on connected workers."""

    def __init__(
        self,
        cluster: Cluster,
        job: Job,
        data: data_set.DataSet,
        shutdown: ShutdownRequest,
        hang_timer: HangTimer,
        beginning: Beginning,
        lease: Right,
    ) -> None:
        """Create the model on the devices, from the newest checkpoint if there is one."""
        self._cluster, self._job, self._data = cluster, job, data
        self._shutdown, self._hang_timer, self._lease = shutdown, hang_timer, lease
        self._model_dir = job.model_dir.rstrip("/")
        self._spec = data.manifest.input_spec(job.params.image_size)
        self._observers = create_observers(job) if job.trains else []
        peak = peak_flops(job, cluster)
        cluster.forget()
        # Before the variables take the devices' memory.
        model_description.refuse_another_purpose(job.model_dir, self._spec, job.data, job.model)
        steps = data.manifest.steps(job.params)
        self._state = state = create_train_state(
            cluster, job.model, job.params, data.manifest, steps
        )
        validates = job.trains and manifest.VALIDATION in data.manifest.splits
        tests = job.evaluates and manifest.TEST in data.manifest.splits
        splits = [manifest.VALIDATION] * validates + [manifest.TEST] * tests
        if splits and not state.evaluates:
            raise errors.InputError(
                f"the task {state.task.name} has no losses, so it can't evaluate the data's "
                f"{' and '.join(splits)} split; give it losses, or train without"
            )
        if state.unsaved:
            # No checkpoint has those.
            initial_weights.load_initial_weights(cluster, job.params, state.model)
        base, keep = reader.digest_of(state.unsaved), job.params.keep_checkpoints
        record = reader.JobRecord(job.model.name, job.params, base)
        self._checkpoints = Checkpoints(job.model_dir, state, record, keep, cluster, lease)
        with beginning.measure("restore"):
            restored = self._checkpoints.restore_latest()
        oldest, newest = cluster.spread(self._step())
        if newest != oldest:
            raise errors.CheckpointError(
                f"--model-dir={job.model_dir}: one host has found the checkpoint of step "
                f"{newest:.0f}, another that of {oldest:.0f}; name a folder of a bucket"
            )
        self._control = self._create_control(record)
        # What a process that ends without TensorFlow's answer says is saved must be true.
        hang_timer.saved_step = lambda: self._checkpoints.saved_step
        if job.trains:
            self._prepare_training(restored)
        else:
            self._prepare_evaluation(restored)
        self._metrics = Metrics(cluster, job, data)
        # Of several hosts, one keeps the curves and the ledger.
        self._unread = (
            None if cluster.leads else tempfile.TemporaryDirectory(prefix="tpu-training-")
        )
        where = self._unread.name if self._unread else self._model_dir
        self._monitor = measurements.Monitor(
            cluster, job.params, where, data, state, beginning, shutdown.why, peak
        )
        self._checkpoints.copied = self._monitor.model.copied
        self._train_loop, evaluation_loop = _loops_of(cluster)
        if job.trains and job.evaluates and not tests:
            logger.info("evaluate: the data has no test split, so nothing is tested at the end")
        # Nothing is compiled before the first evaluation.
        self._evaluate = {
            split: create_evaluation(
                *(cluster, job.params, data, state, split, self._check),
                create_loop=evaluation_loop,
            )
            for split in splits
        }

    def _create_control(self, record: reader.JobRecord) -> Control:
        """Return what the observers get, with the rate as an earlier run scaled it."""
        state, params, data = self._state, self._job.params, self._data.manifest
        every = params.evaluation_interval if manifest.VALIDATION in data.splits else 0
        whole = max(1, data.split(manifest.TRAIN).examples // params.global_batch_size)

        def record_rate(to: float) -> None:
            if to != record.rate_factor:
                self._checkpoints.wait()  # The pending one must record the rate before it.
                record.rate_factor = to

        def scale(to: float) -> None:
            self._cluster.fetch(to_change=True)
            factor.assign(to)

        rates = scale, record_rate, state.optimizer.rate, state.step, data.steps(params)
        control = Control(self._model, self._shutdown.request_save, *rates, every, whole)
        # What an earlier run scaled stays scaled, whether or not a callback is still given.
        if self._observers or record.rate_factor != 1:
            with self._cluster.strategy.scope():
                factor = state.optimizer.scaled()
            control.scale_rate(record.rate_factor)
        for observer in self._observers:
            observer.control = control
        return control

    def _model(self) -> tf.Module:
        """Return the model with its current weights, which may be changed."""
        self._cluster.fetch(to_change=True)
        return self._state.model

    def run(self) -> Result:
        """Train and evaluate, as the job's mode says, and write the results."""
        # Whatever fails from here on, a pending checkpoint is written before the lease ends.
        summaries, observers = closing(self._monitor.summaries), self._observers
        try:
            with self._shutdown, summaries, started(observers, self._step()), self._checkpoints:
                if self._job.trains:
                    self._train()
                self._validate(self._step())
                self._test(self._step())
                if self._job.trains:
                    self._monitor.ledger.finish()
                self._hang_timer.reset()
        except errors.Interrupted:
            # All hosts have agreed to end; none does before what another one saves is whole.
            self._cluster.finish()
            raise
        self._lease.confirm()
        result = self._write_results()
        self._cluster.finish()
        return result

    def _check(self) -> None:
        """Raise Interrupted where one of the hosts has to end."""
        if any(self._cluster.agree(self._shutdown.requested)):
            self._shutdown.join()
        self._shutdown.check()

    def _prepare_training(self, restored: str | None) -> None:
        job, state = self._job, self._state
        if restored is None:
            if not state.unsaved:
                initial_weights.load_initial_weights(self._cluster, job.params, state.model)
            initial_weights.check_first_weights(self._cluster, state.model)
            # It began as a copy of the weights that these replaced.
            if state.average:
                state.average.reset()
        log_plan(job.params, self._data, self._step())
        if not self._cluster.leads:
            return
        names, (tokens, content) = self._data.manifest.class_names, self._vocabulary
        if tokens:
            files.write_bytes(f"{job.model_dir.rstrip('/')}/{tokens}", content)
        model_description.describe_model(
            job.model, job.params, self._spec, job.data, names, tokens
        ).write(job.model_dir)

    def _prepare_evaluation(self, restored: str | None) -> None:
        if restored is None:
            raise errors.InputError(
                f"--model-dir={self._job.model_dir}: contains no checkpoint to evaluate; train "
                "first"
            )
        # The results of a training that averaged are those of its averaged weights.
        if self._state.average is None:
            reader.restore_averages(self._state.model, restored)

    def _step(self) -> int:
        return int(self._state.step.numpy())

    def _train(self) -> None:
        monitor = self._monitor
        callbacks = [LeaseCheck(self._lease), self._hang_timer, *monitor.callbacks]
        result = train(
            *(self._cluster, self._job.params, self._data, self._state, self._checkpoints),
            *(callbacks, self._shutdown, self._validate, self._exhausted, self._observers),
            self._train_loop,
        )
        self._metrics.add_training(result, monitor.progress)
        self._metrics.values.update(monitor.curves.figures)

    def _validate(self, step: int) -> None:
        """Evaluate the validation set if there is one; keep the checkpoint if it is the best."""
        with self._monitor.times.evaluating():
            if manifest.VALIDATION in self._evaluate:
                evaluation = self._evaluation(manifest.VALIDATION, step)
                best = self._checkpoints.keep_best(step, evaluation.figures)
                self._metrics.add_best(best, self._state.task.best)
        self._hang_timer.reset()

    def _test(self, step: int) -> None:
        with self._monitor.times.evaluating():
            if manifest.TEST in self._evaluate:
                self._evaluation(manifest.TEST, step)

    def _evaluation(self, split: str, step: int) -> Evaluation:
        evaluation = self._evaluate[split]()
        self._metrics.add_evaluation(evaluation)
        self._monitor.summaries.scalars(step, evaluation.scalars)
        self._monitor.model.evaluated(step, split)
        for observer in (self._monitor.history, *self._observers):
            observer.after_evaluation(step, evaluation.scalars)
        return evaluation

    def _exhausted(self, step: int) -> bool:
        """Return whether a callback stops, or the best evaluation is `patience` evaluations old."""
        params, record = self._job.params, self._checkpoints.record
        # `patience` counts evaluations, `best` has a step.
        patience = params.patience * params.evaluation_interval
        old = bool(patience and record.best and step - record.best["step"] >= patience)
        least, most = self._cluster.spread(self._control.factor)
        if most != least:
            raise errors.InputError(
                f"callbacks: scale_rate({most:g}) on one host, {least:g} on another; scale the "
                "rate by what all hosts know alike, such as the report of the loop"
            )
        return any(self._cluster.agree(self._control.stopped or old))

    def _write_results(self) -> Result:
        cluster, job, state = self._cluster.here, self._job, self._state
        self._cluster.fetch(to_change=True)
        summary, values = self._metrics.write(self._model_dir)
        if job.trains and self._cluster.leads:
            with tf.device(cluster.this_process):
                logger.info("report: %s", measurements.write_report(job.model_dir))
            if note := os.environ.get(measurements.COST_NOTE):
                logger.info("cost: %s", note)
        if state.average:
            with cluster.on_loop_device():
                state.average.swap()  # Training is over: the model keeps its averaged weights.
        history, made = self._monitor.history.rows, (cluster, job.params, state, self._spec)
        evaluate = functools.partial(evaluate_given, *made)
        predict = create_prediction(*made, self._vocabulary)
        return Result(summary, values, history, state.model, job.model_dir, predict, evaluate)

    @functools.cached_property
    def _vocabulary(self) -> tuple[str, bytes]:
        """Return the name and content of the tokenizer's file, for texts."""
        name = self._data.manifest.vocabulary
        return name, files.read_bytes(f"{self._data.directory}/{name}") if name else b""


def _loops_of(
    cluster: Cluster,
) -> tuple[Callable[..., TrainLoop] | None, Callable[..., tuple[EvaluationLoop, int]] | None]:
    """Return what compiles the loops of steps; None for TensorFlow's."""
    if cluster is cluster.here:
        return None, None
    from tpu_training.compile import runtime

    return runtime.TrainLoop, runtime.create_evaluation_loop


class LeaseCheck(Callback):
    """Ends a training whose model directory another process has taken over."""

    def __init__(self, lease: Right) -> None:
        self._lease = lease

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Raise LeaseError if the lease is lost."""
        self._lease.check()


class Metrics:
    """Measured values by name. Rates are per second; losses are means over examples."""

    def __init__(self, cluster: Cluster, job: Job, data: data_set.DataSet) -> None:
        """Collect the values that are known before the first step."""
        self.values: dict[str, Any] = {
            "endpoint": cluster.endpoint,
            "model": job.model.name,
            "strategy": cluster.strategy_name,
            "replicas": cluster.replicas,
            "tensorflow": tf.__version__,
            "data": data.manifest.name,
            "global_batch_size": job.params.global_batch_size,
        }
        self._writes = cluster.leads
        self._class_names = data.manifest.class_names
        self._metrics: tuple[str, ...] = ()
        self._confusion: list[list[int]] = []

    def add_training(self, result: TrainResult, progress: terminal.Progress) -> None:
        """Add the results of the training."""
        self.values["steps"] = result.steps
        if progress.steps_per_second:
            self.values["train_loss"] = result.loss
            self.values["steps_per_second"] = round(progress.steps_per_second, 3)
            self.values["examples_per_second"] = round(progress.examples_per_second, 1)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Add the results of an evaluation."""
        self.values.update(
            {f"{evaluation.split}_{name}": value for name, value in evaluation.figures.items()}
        )
        self.values[f"{evaluation.split}_examples"] = evaluation.examples
        self._metrics = tuple(evaluation.metrics)
        if evaluation.split == manifest.TEST:
            self._confusion = evaluation.tables.get("confusion", [])

    def add_best(self, best: Mapping[str, float], figure: str) -> None:
        """Add the best `figure` of the validation set so far and its step."""
        self.values[f"best_{figure}"] = best[figure]
        self.values["best_step"] = best["step"]

    def write(self, model_dir: str) -> tuple[str, dict[str, Any]]:
        """Merge the values into the file of an earlier run; return a summary line and them."""
        path, table = f"{model_dir}/metrics.json", f"{model_dir}/classes.json"
        # An evaluation alone must not lose the figures of the training before it.
        had, counted = files.read_json(path), files.read_json(table)
        # But those of other weights are not the figures of these.
        if self.values.get("steps", had.get("steps")) != had.get("steps"):
            had = {}
        names = counted.get("class_names", [])
        merged = {**had, "format": _FORMAT, **self.values}
        if self._writes:
            files.write_text(path, json.dumps(merged, indent=2, sort_keys=True) + "\n")
        if self._writes and self._confusion:
            content = {
                "format": _FORMAT,
                "class_names": self._names(len(self._confusion)),
                "confusion": self._confusion,
            }
            files.write_text(table, json.dumps(content) + "\n")
        elif self._writes and counted and not (had and self._names(len(names)) == names):
            tf.io.gfile.remove(table)
        splits = (manifest.TEST, manifest.VALIDATION)
        metrics = [f"{split}_{name}" for split in splits for name in self._metrics]
        known = {name: merged[name] for name in (*metrics, *_SUMMARY) if name in merged}
        shown = [f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in known.items()]
        return " ".join([*shown, f"metrics={path}"]), merged

    def _names(self, classes: int) -> list[str]:
        return [str(name) for name in self._class_names or range(classes)]


def log_plan(params: Params, data: data_set.DataSet, step: int) -> None:
    """Log the number of steps from `step` on; warn when they are too few to learn from."""
    examples, steps = data.manifest.split("train").examples, data.manifest.steps(params)
    by_epochs = not (params.steps or params.tokens or params.limit_batches)
    if step >= steps:
        return
    logger.info(
        "plan: %g epochs of %d examples in batches of %d are %d steps; the next line follows "
        "after the first %d, which include compiling the step",
        params.epochs if by_epochs else steps * params.global_batch_size / examples,
        examples,
        params.global_batch_size,
        steps,
        min(params.steps_per_loop or steps, FIRST_STEPS, steps - step),
    )
    if steps < _FEW_STEPS and by_epochs:
        logger.warning(
            "plan: %d steps may be too few to learn from; %s", steps, _cure(params, examples)
        )


def _cure(params: Params, examples: int) -> str:
    epochs = params.global_batch_size * _ENOUGH_STEPS / examples
    cure = f"raise --epochs (to {epochs:.3g} for {_ENOUGH_STEPS} steps)"
    # The largest power of two that gives enough steps.
    batch = 1 << max(int(params.epochs * examples / _ENOUGH_STEPS), 1).bit_length() - 1
    if batch < params.global_batch_size:
        cure += f" or lower --global_batch_size (to {batch})"
    return cure


def create_observers(job: Job) -> list[Callback]:
    """Return the callbacks of the job's user, from a file and from Python.

    Raises:
        InputError: A file has no `create_callbacks`, or that gives something else.
    """
    path = job.params.callback
    if not path:
        return [*job.callbacks]
    create = getattr(load_file(path, "callback"), "create_callbacks", None)
    if not callable(create):
        raise errors.InputError(f"--callback={path}: lacks a function `create_callbacks(job)`")
    made = checked(create(job), f"--callback={path}: create_callbacks returned ")
    return [*made, *job.callbacks]


def peak_flops(job: Job, cluster: Cluster) -> float:
    """Return the peak of all replicas, bfloat16 operations a second; 0 where it is unknown.

    Raises:
        InputError: --tpu_type is not a TPU type.
    """
    named = job.params.tpu_type or os.environ.get(_TYPE_VARIABLE, "")
    if job.params.tpu_type and named not in tpus():
        raise errors.InputError(unknown_tpu("tpu_type", named))
    if not cluster.has_tpu or named not in tpus():
        return 0.0
    return tpus()[named].peak_flops * cluster.replicas


# The dataset of a job: files in a directory or bucket, or a function that gives the examples.

# Operations that call a function of this process, which no worker has.
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def connect_and_open(
    workers: Workers,
    wait: Wait,
    job: Job,
    connecting: AbstractContextManager[object] | None = None,
    alive: Callable[[], None] = lambda: None,
) -> tuple[Cluster, Job, data_set.DataSet]:
    """Connect to `workers`, within `connecting`; open the data of `job`, less what it holds out.

    `alive` is called while the examples of a function are counted, which may take long. Files are
    looked at before any waiting. A function runs TensorFlow, which must know the devices.

    Raises:
        InputError: The data is unusable, or the workers can't read it.
    """
    opened = None if job.is_live else _open(job, alive)
    with connecting or nullcontext():
        devices = job.params.local_devices
        on_jax = job.params.backend == JAX
        seconds = wait.tries * wait.interval
        cluster = connect_jax(devices, seconds) if on_jax else connect(workers, wait, devices)
    # The look at examples runs here, where a user's Python is, and not on a worker.
    with tf.device(cluster.this_process):
        job, data = opened or _open(job, alive)
    mixes = job.trains and (job.params.mixup or job.params.cutmix)
    if data.manifest.weighted and mixes:
        raise errors.InputError(
            f"{data.function.function.place if data.function else f'--data={data.directory}'}: "
            "has weights, but --mixup and --cutmix mix two examples, whose weights may differ; "
            "omit them, or the weights"
        )
    if data.function:
        _check_function(data.function, job, cluster)
    else:
        data_set.check_readable(data, cluster)
    return cluster, job, data


def _open(job: Job, alive: Callable[[], None] = lambda: None) -> tuple[Job, data_set.DataSet]:
    if job.given and (directory := conversion.write_given(job.given, job.model_dir)):
        job = dataclasses.replace(job, data=directory, given=None)
    if job.given is not None:
        function = data_set.given_function(job.given)
        data = data_set.of_function(function, job.data, job.params.seed, alive=alive)
    else:
        streams = job.trains and job.params.order == STREAM
        data = data_set.open_given(job.data, job.params.seed, alive, streams)
    tasks.check_targets(job.model, data.manifest.input_spec(job.params.image_size))
    if job.mode == "evaluate":
        data.manifest.split(manifest.TEST)
        return job, data
    job = dataclasses.replace(job, params=validation.with_fraction(job.params, data.manifest))
    data_set.check_order(data, job.params)
    return job, validation.hold_out(data, job.params)


def _check_function(live: data_function.LiveFunction, job: Job, cluster: Cluster) -> None:
    """Refuse a function that the workers or the job can't use, or a resumed job can't continue."""
    for split in live.examples:
        graph = trace(live.function, split)
        python = python_in(graph, live.function.place)
        if python and cluster.endpoint:
            raise errors.InputError(
                f"{python}: runs Python for each example, which the workers at {cluster.endpoint} "
                "can't do; write it with TensorFlow, or convert its examples with `tpu-training "
                "data convert`"
            )
        if python and cluster.processes > 1:
            raise errors.InputError(
                f"{python}: runs Python for each example, which may yield others on each of "
                f"{cluster.processes} hosts; write it with TensorFlow, or convert its examples "
                "with `tpu-training data convert`"
            )
        if python and split == manifest.TRAIN:
            logger.warning(
                "data: %s runs Python for each example; a resumed training continues exactly only "
                "if each pass over the same seed returns the same",
                python,
            )
        if job.params.order != FAST:
            refuse_unrepeatable(graph, live.function.place)


def trace(function: data_function.DataFunction, split: str = manifest.TRAIN) -> tf.Graph:
    """Return the graph of a split's examples. Raises InputError with the user's line."""

    # The function goes through AutoGraph in `in_graph`; this wrapper of ours must not.
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def rows(seed: tf.Tensor) -> tf.data.Dataset:
        return function.in_graph(split, seed)

    return rows.get_concrete_function(tf.TensorSpec((), tf.int64)).graph


def python_in(graph: tf.Graph, place: str) -> str:
    """Return FILE:LINE, or `place`, of what runs Python for each example in `graph`, or ""."""
    found = (each for each in operations(graph) if each.type in _PYTHON)
    return next((_where(each) or place for each in found), "")


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
        raise errors.InputError(
            f"{'; '.join(found)}; or pass --order=fast, with which a resumed training continues "
            "after as many examples, but with others"
        )


def _why(operation: tf.Operation) -> str:
    attributes = operation.node_def.attr
    if _draws_its_seed(operation):
        return f"{operation.type} has no seed; pass seed=context.seed"
    if attributes["rerandomize_each_iteration"].b:
        return "draws other numbers after a restart; omit rerandomize_each_iteration"
    if operation.op_def.is_stateful and ("seed2" in attributes or "Rng" in operation.type):
        return (
            f"{operation.type} draws other numbers after a restart; use tf.random.stateless_… or "
            "tf.image.stateless_random_… with context.seed"
        )
    if attributes["deterministic"].s == b"false" or attributes["sloppy"].b:
        return "returns examples in the order in which threads are ready; omit deterministic"
    return ""


def _draws_its_seed(operation: tf.Operation) -> bool:
    """Return whether a dataset that draws was given no seed, for which 0 and 0 stand."""
    names = [argument.name for argument in operation.op_def.input_arg]
    inputs = dict(zip(names, operation.inputs, strict=False))
    seeds = [inputs[name] for name in ("seed", "seed2") if name in inputs]
    return len(seeds) == 2 and all(tf.get_static_value(seed) == 0 for seed in seeds)


def _where(operation: tf.Operation) -> str:
    """Return FILE:LINE of the user's code that made `operation`, or ""."""
    return errors.users_line(
        (frame.filename, frame.lineno) for frame in reversed(operation.traceback or ())
    )
