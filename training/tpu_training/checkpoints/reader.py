"""Find the newest complete checkpoint and restore it."""

import logging
import re

import tensorflow as tf

from tpu_training.errors import CheckpointError

ANOTHER_DIRECTORY = (
    "choose another --model-dir, or the model and the parameters that it was trained with"
)
_NAME = re.compile(r"ckpt-(\d+)\.index")
# These errors are about reaching the checkpoint, not about its content.
_NOT_ABOUT_THE_FILE = (
    tf.errors.PermissionDeniedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
)

logger = logging.getLogger(__name__)


def checkpoint_paths(directory: str) -> list[str]:
    """List paths without suffixes, newest first. The state file may be stale, so it is ignored."""
    try:
        names = tf.io.gfile.listdir(directory)
    except tf.errors.NotFoundError:
        return []
    steps = sorted((int(m[1]) for n in names if (m := _NAME.fullmatch(n))), reverse=True)
    return [f"{directory}/ckpt-{step}" for step in steps]


def newest_whole(directory: str) -> str | None:
    """Return the path of the newest complete checkpoint in `directory`, None if there is none.

    A checkpoint that was being written when the process was killed is skipped (tensorflow#61552).
    """
    for path in checkpoint_paths(directory):
        reason = _why_not_whole(path)
        if not reason:
            return path
        logger.warning("checkpoint: skipped %s, which is incomplete (%s)", path, reason)
    return None


def restore(checkpoint: tf.train.Checkpoint, path: str, device: str, hint: str = "") -> None:
    """Restore every object of `checkpoint` from `path`, read by `device`.

    Raises:
        CheckpointError: A value is missing or has another shape; the message includes `hint`.
    """
    options = tf.train.CheckpointOptions(experimental_io_device=device)
    try:
        status = checkpoint.restore(path, options=options)
        # Values that nobody asks for are fine: an export has no optimizer.
        status.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        why = hint or str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path} belongs to another model ({why}); {ANOTHER_DIRECTORY}"
        ) from error
    logger.info("checkpoint: restored %s", path)


def _why_not_whole(path: str) -> str | None:
    """Read every tensor, which verifies their checksums; return the first problem."""
    try:
        reader = tf.train.load_checkpoint(path)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    except _NOT_ABOUT_THE_FILE:
        raise
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError) as error:
        return str(getattr(error, "message", error)).partition("\n")[0]
    return None
