"""A job's checkpoints in `<model-dir>/checkpoints`, and its best one in `<model-dir>/best`.

They are written in the background; a restart reads the newest complete one.
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

# A checkpoint that differs in one of these would fit only by accident.
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

    This process reads and writes the files, because a TPU's host can't ("File system scheme
    '[local]' not implemented"). As a context manager it waits at the end for a pending write.
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
        self._writer.save(self.directory, step)

    def keep_best(self, step: int, accuracy: float, loss: float) -> Best:
        """Save the state of `step` when its `accuracy` is the best yet; return the best one."""
        if not self.record.best or accuracy > self.record.best["accuracy"]:
            self.wait()  # The pending checkpoint must record the best one before it.
            self.record.best = {"step": step, "accuracy": accuracy, "loss": loss}
            self._writer.save(self._best_directory, step)
            logger.info("best until now: step=%d accuracy=%.4f", step, accuracy)
        return self.record.best

    def wait(self) -> None:
        """Wait for a pending write; raise its error."""
        if "_writer" in self.__dict__:
            self._writer.wait()

    @cached_property
    def _writer(self) -> CheckpointWriter:
        """Create the writer on first use: a job that only evaluates needs no copy."""
        return CheckpointWriter(self._checkpoint, self._cluster, self._keep)

    def restore_latest(self) -> str | None:
        """Restore the newest complete checkpoint and return its path; None if there is none.

        Raises:
            CheckpointError: The checkpoint belongs to another model.
        """
        path = newest_whole(self.directory)
        if path:
            self._refuse_another_identity(path)
            restore(self._checkpoint, path, self._cluster.this_process, self._had(path))
            if had := self._had(path):
                logger.warning(
                    "checkpoint: %s %s; training continues with the new values", path, had
                )
            # The best checkpoint may be newer than the last regular one.
            best = tf.train.latest_checkpoint(self._best_directory)
            self.record.best = best_of(best) if best else None
        return path

    def describe_latest(self) -> str:
        """Describe the checkpoint from which a restart would continue."""
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
