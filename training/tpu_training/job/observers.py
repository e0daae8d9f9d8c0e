"""What watches a job from its first loop to its last evaluation: a user's callbacks, trackers."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from tpu_training.cluster.cluster import Cluster
from tpu_training.compile.tpus import tpus, unknown_tpu
from tpu_training.errors import InputError
from tpu_training.job.job import Job
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.models.registry import load_file
from tpu_training.monitoring.trackers import Tracker

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
