"""A job's checkpoints in `<model-dir>/checkpoints`, and its best one in `<model-dir>/best`.

They are written in the background; a restart reads the newest complete one.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

import tensorflow as tf

from tpu_training.checkpoints.averages import has_averages
from tpu_training.checkpoints.lease.hold import Lease, NoLease
from tpu_training.checkpoints.reader import (
    ANOTHER_DIRECTORY,
    checkpoint_paths,
    newest_whole,
    restore,
)
from tpu_training.checkpoints.record import Best, JobRecord, best_of
from tpu_training.checkpoints.writer import CheckpointWriter
from tpu_training.cluster.cluster import Cluster
from tpu_training.errors import CheckpointError
from tpu_training.models.params import Params
from tpu_training.models.task import Task

# A checkpoint that differs in one of these would fit only by accident: an optimizer's moments are
# those of the variables that are trained.
_IDENTITY = ("model=", "optimizer=", "freeze=")

logger = logging.getLogger(__name__)


class Average(Protocol):
    """A module that can start anew."""

    def reset(self) -> None:
        """Start with the model's weights."""


class Trained(Protocol):
    """What a job has learned so far."""

    @property
    def model(self) -> tf.Module:
        """The model."""

    @property
    def optimizer(self) -> tf.Module:
        """The optimizer with its moments."""

    @property
    def average(self) -> Average | None:
        """The average of its weights, if there is one."""

    @property
    def step(self) -> tf.Variable:
        """The number of steps done."""

    @property
    def task(self) -> Task:
        """What it learns."""


class Checkpoints:
    """The checkpoints of one job.

    This process reads and writes the files, because a TPU's host can't ("File system scheme
    '[local]' not implemented"). As a context manager it waits at the end for a pending write.
    """

    def __init__(
        self,
        model_dir: str,
        state: Trained,
        record: JobRecord,
        keep: int,
        cluster: Cluster,
        lease: Lease | None = None,
    ) -> None:
        """Keep the last `keep` checkpoints of `state` under `model_dir`, held by `lease`."""
        self._lease = lease or NoLease()
        folder = model_dir.rstrip("/")
        self.directory = f"{folder}/checkpoints"
        self._best_directory = f"{folder}/best"
        self.record = record
        parts = {"model": state.model, "optimizer": state.optimizer, "step": state.step}
        self._without_average = tf.train.Checkpoint(record=record, **parts)
        self._average = state.average
        with_average = {"average": state.average} if state.average else {}
        self._checkpoint = tf.train.Checkpoint(record=record, **parts, **with_average)
        self._cluster = cluster
        self._task = state.task
        self.saved_step = 0
        """The step of the newest checkpoint that is whole."""
        self.copied: Callable[[int, tf.Module], None] = lambda step, model: None
        """Is called in the background with a saved step and the copy of its model here."""
        self._keep = {self.directory: keep, self._best_directory: 1}

    def __enter__(self) -> "Checkpoints":
        """Enter without side effects."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for a pending write; its failure never hides an earlier exception."""
        try:
            self.wait()
        except Exception as error:
            if kind is None:
                raise
            logger.warning("checkpoint: not saved (%s)", error)

    def save(self, step: int) -> None:
        """Save the state of `step` in the background; see CheckpointWriter.save."""
        self._writer.save(self.directory, step, self._note)

    def _note(self, step: int) -> None:
        self.saved_step = step
        self.copied(step, self._writer.copy.model)

    def keep_best(self, step: int, figures: Mapping[str, float]) -> Best:
        """Save the state of `step` when its `figures` are the best yet; return the best ones."""
        if not self.record.best or self._task.better(figures, self.record.best):
            self.wait()  # The pending checkpoint must record the best one before it.
            self.record.best = {"step": step, **figures}
            self._writer.save(self._best_directory, step)
            best = self._task.best
            logger.info("best until now: step=%d %s=%.4f", step, best, figures[best])
        return self.record.best

    def wait(self) -> None:
        """Wait for a pending write; raise its error."""
        if "_writer" in self.__dict__:
            self._writer.wait()

    @cached_property
    def _writer(self) -> CheckpointWriter:
        """Create the writer on first use: a job that only evaluates needs no copy."""
        return CheckpointWriter(self._checkpoint, self._cluster, self._keep, self._lease.confirm)

    def restore_latest(self) -> str | None:
        """Restore the newest complete checkpoint and return its path; None if there is none.

        Raises:
            CheckpointError: The checkpoint belongs to another model.
        """
        path = newest_whole(self.directory)
        if path:
            self.saved_step = int(path.rpartition("-")[2])
            self._refuse_another_identity(path)
            self._restore(path)
            if had := self._had(path):
                logger.warning(
                    "checkpoint: %s %s; training continues with the new values", path, had
                )
            # The best checkpoint may be newer than the last regular one.
            best = tf.train.latest_checkpoint(self._best_directory)
            self.record.best = best_of(best) if best else None
        return path

    def _restore(self, path: str) -> None:
        """Restore `path`; an average that is not there starts with the restored weights."""
        begins = self._average is not None and not has_averages(path)
        checkpoint = self._without_average if begins else self._checkpoint
        restore(checkpoint, path, self._cluster.this_process, self._shaped(path))
        if self._average is not None and begins:
            self._average.reset()

    def describe_latest(self) -> str:
        """Describe the checkpoint from which a restart would continue."""
        paths = checkpoint_paths(self.directory)
        if not paths:
            return "no checkpoint was saved yet"
        return f"the last checkpoint, {paths[0]}, stays as it is"

    def _had(self, path: str) -> str:
        differences = self.record.differences(path)
        return f"was trained with {', '.join(differences)}" if differences else ""

    def _shaped(self, path: str) -> str:
        """Say which of the model's own parameters, on which shapes depend, have changed."""
        changed = (had.partition("=") for had in self.record.differences(path))
        own = ["".join(had) for had in changed if had[0] not in Params.__dataclass_fields__]
        return f"was trained with {', '.join(own)}" if own else ""

    def _refuse_another_identity(self, path: str) -> None:
        if any(had.startswith(_IDENTITY) for had in self.record.differences(path)):
            raise CheckpointError(
                f"{path} belongs to another model: it {self._had(path)}; {ANOTHER_DIRECTORY}"
            )
        if had := self.record.has_seen_more(path):
            fraction = self.record.params["validation_fraction"]
            raise CheckpointError(
                f"--validation_fraction={fraction:g}: {path} {had}, so it has learned from what "
                f"would now be held out; give the same values, or {ANOTHER_DIRECTORY}"
            )
