"""Checkpoints in `<model-dir>/checkpoints`: written by this process, the newest whole one read."""

import logging
import re

import tensorflow as tf

from training.errors import CheckpointError

_NAME = re.compile(r"ckpt-(\d+)\.index")
# These say nothing about the checkpoint, only about the way to it.
_NOT_ABOUT_THE_FILE = (
    tf.errors.PermissionDeniedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
)

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one job."""

    def __init__(
        self, model_dir: str, checkpoint: tf.train.Checkpoint, keep: int, device: str
    ) -> None:
        """Keep the last `keep` checkpoints of `checkpoint` under `model_dir`.

        `device` reads and writes the files: Cluster.this_process, as a TPU's host can't
        ("File system scheme '[local]' not implemented").
        """
        self.directory = f"{model_dir.rstrip('/')}/checkpoints"
        self._checkpoint = checkpoint
        self._options = tf.train.CheckpointOptions(experimental_io_device=device)
        self._manager = tf.train.CheckpointManager(checkpoint, self.directory, max_to_keep=keep)

    def save(self, step: int) -> None:
        """Write the checkpoint of `step`."""
        path = self._manager.save(checkpoint_number=step, options=self._options)
        logger.info("checkpoint: saved %s", path)

    def restore_latest(self) -> str | None:
        """Restore the newest checkpoint that is whole; return its path, None when there is none.

        One that was being written when the process was killed is skipped (tensorflow#61552). Raises
        CheckpointError when it belongs to another model.
        """
        for path in self._paths():
            if reason := self._why_not_whole(path):
                logger.warning("checkpoint: skipped %s, which is not whole (%s)", path, reason)
                continue
            self._restore(path)
            logger.info("checkpoint: restored %s", path)
            return path
        return None

    def describe_latest(self) -> str:
        """Name the newest checkpoint in words."""
        paths = self._paths()
        return f"the last checkpoint, {paths[0]}," if paths else "no checkpoint was saved, which"

    def _paths(self) -> list[str]:
        """Paths without their endings, newest first; by listing, as the state file may be old."""
        try:
            names = tf.io.gfile.listdir(self.directory)
        except tf.errors.NotFoundError:
            return []
        steps = sorted((int(m[1]) for n in names if (m := _NAME.fullmatch(n))), reverse=True)
        return [f"{self.directory}/ckpt-{step}" for step in steps]

    def _why_not_whole(self, path: str) -> str | None:
        """Read every tensor: their checksums are verified on the way."""
        try:
            reader = tf.train.load_checkpoint(path)
            for key in reader.get_variable_to_shape_map():
                reader.get_tensor(key)
        except _NOT_ABOUT_THE_FILE:
            raise
        except (tf.errors.OpError, RuntimeError, ValueError, LookupError) as error:
            return str(getattr(error, "message", error)).partition("\n")[0]
        return None

    def _restore(self, path: str) -> None:
        try:
            status = self._checkpoint.restore(path, options=self._options)
            status.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise CheckpointError(
                f"{path} belongs to another model ({str(error).partition(chr(10))[0]}); choose "
                "another --model-dir, or the parameters that it was trained with"
            ) from error
