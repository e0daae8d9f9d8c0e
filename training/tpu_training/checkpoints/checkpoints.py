"""Checkpoints in `<model-dir>/checkpoints`: written behind the training, the newest whole one read.

A job's best evaluation has one of its own in `<model-dir>/best`.
"""

import logging
from functools import cached_property
from typing import Protocol

import tensorflow as tf

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

# A checkpoint with another one of these fits by chance alone.
_IDENTITY = ("model=", "optimizer=")

logger = logging.getLogger(__name__)


class Trained(Protocol):
    """What a job has learned so far."""

    @property
    def model(self) -> tf.Module:
        """The model."""

    @property
    def optimizer(self) -> tf.Module:
        """The optimizer with its moments."""

    @property
    def step(self) -> tf.Variable:
        """The number of steps done."""


class Checkpoints:
    """The checkpoints of one job.

    Files are read and written by this process, as a TPU's host can't ("File system scheme '[local]'
    not implemented"). As a context it waits at the end for what is being written.
    """

    def __init__(
        self, model_dir: str, state: Trained, record: JobRecord, keep: int, cluster: Cluster
    ) -> None:
        """Keep the last `keep` checkpoints of `state` under `model_dir`."""
        folder = model_dir.rstrip("/")
        self.directory = f"{folder}/checkpoints"
        self._best_directory = f"{folder}/best"
        self.record = record
        self._checkpoint = tf.train.Checkpoint(
            model=state.model, optimizer=state.optimizer, step=state.step, record=record
        )
        self._cluster = cluster
        self._keep = {self.directory: keep, self._best_directory: 1}

    def __enter__(self) -> "Checkpoints":
        """Nothing to do."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for what is being written; its failure does not hide another one."""
        try:
            self.wait()
        except Exception as error:
            if kind is None:
                raise
            logger.warning("checkpoint: not saved (%s)", error)

    def save(self, step: int) -> None:
        """Save the state of `step` behind the training; see CheckpointWriter.save."""
        self._writer.save(self.directory, step)

    def keep_best(self, step: int, accuracy: float, loss: float) -> Best:
        """Save the state of `step` when its `accuracy` is the best yet; return the best one."""
        if not self.record.best or accuracy > self.record.best["accuracy"]:
            self.wait()  # What is being written says which one was the best then.
            self.record.best = {"step": step, "accuracy": accuracy, "loss": loss}
            self._writer.save(self._best_directory, step)
            logger.info("best until now: step=%d accuracy=%.4f", step, accuracy)
        return self.record.best

    def wait(self) -> None:
        """Wait until nothing is being written any more; raise what went wrong."""
        if "_writer" in self.__dict__:
            self._writer.wait()

    @cached_property
    def _writer(self) -> CheckpointWriter:
        """Made when it is needed: a job that only evaluates has no use for a copy."""
        return CheckpointWriter(self._checkpoint, self._cluster, self._keep)

    def restore_latest(self) -> str | None:
        """Restore the newest checkpoint that is whole; return its path, None when there is none.

        Raises CheckpointError when it belongs to another model.
        """
        path = newest_whole(self.directory)
        if path:
            self._refuse_another_identity(path)
            restore(self._checkpoint, path, self._cluster.this_process, self._had(path))
            if had := self._had(path):
                logger.warning("checkpoint: %s %s; now it goes on otherwise", path, had)
            # The best one may have been saved after the last of the others.
            best = tf.train.latest_checkpoint(self._best_directory)
            self.record.best = best_of(best) if best else None
        return path

    def describe_latest(self) -> str:
        """Say in words what there is to go on from."""
        paths = checkpoint_paths(self.directory)
        if not paths:
            return "no checkpoint was saved yet"
        return f"the last checkpoint, {paths[0]}, stays as it is"

    def _had(self, path: str) -> str:
        differences = self.record.differences(path)
        return f"was trained with {', '.join(differences)}" if differences else ""

    def _refuse_another_identity(self, path: str) -> None:
        if any(had.startswith(_IDENTITY) for had in self.record.differences(path)):
            raise CheckpointError(
                f"{path} belongs to another model: it {self._had(path)}; {ANOTHER_DIRECTORY}"
            )
