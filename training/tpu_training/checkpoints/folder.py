"""A folder or bucket that keeps the last few checkpoints."""

import os
import tempfile
from contextlib import suppress

import tensorflow as tf

from tpu_training.checkpoints.reader import checkpoint_paths

_STATE_FILE = "checkpoint"
_CHUNK_BYTES = 8 << 20


class CheckpointFolder:
    """Like tf.train.CheckpointManager, for a quarter of the calls to a bucket.

    TensorFlow writes there under other names and renames, which in a bucket is a copy, and looks
    for each file before it touches it: 45 calls for a checkpoint. Here it is written on this
    machine first, and copied under its right name, the index last: a checkpoint that is not whole
    has none, and checkpoint_reader looks at more than that.
    """

    def __init__(self, directory: str, keep: int) -> None:
        """Keep the last `keep` checkpoints in `directory`."""
        self._directory = directory
        self._keep = keep
        self._kept: list[str] | None = None

    def add(
        self, checkpoint: tf.train.Checkpoint, step: int, options: tf.train.CheckpointOptions | None
    ) -> str:
        """Write `checkpoint` as that of `step`; return its path. Raises TensorFlow's errors."""
        if self._kept is None:
            tf.io.gfile.makedirs(self._directory)
            self._kept = [os.path.basename(path) for path in checkpoint_paths(self._directory)]
            self._kept.reverse()
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as here:
            local = tf.train.CheckpointManager(checkpoint, here, max_to_keep=1)
            name = os.path.basename(local.save(checkpoint_number=step, options=options))
            files = [file for file in os.listdir(here) if file.startswith(f"{name}.")]
            for file in sorted(files, key=lambda file: file.endswith(".index")):
                _copy(f"{here}/{file}", f"{self._directory}/{file}")
        kept = [*(other for other in self._kept if other != name), name]
        outdated, self._kept = kept[: -self._keep], kept[-self._keep :]
        self._write_state(self._kept)
        for old in outdated:
            self._delete(old)
        return f"{self._directory}/{name}"

    def _write_state(self, names: list[str]) -> None:
        """Tell tf.train.latest_checkpoint which is the newest."""
        lines = [f'model_checkpoint_path: "{names[-1]}"\n']
        lines += [f'all_model_checkpoint_paths: "{name}"\n' for name in names]
        # An object of a bucket appears whole, a file does not.
        in_bucket = "://" in self._directory
        path = f"{self._directory}/{_STATE_FILE}"
        unfinished = path if in_bucket else f"{path}.unfinished"
        with tf.io.gfile.GFile(unfinished, "w") as file:
            file.write("".join(lines))
        if not in_bucket:
            tf.io.gfile.rename(unfinished, path, overwrite=True)

    def _delete(self, name: str) -> None:
        """Its index first: what is left of a deletion that was cut off is no checkpoint."""
        for file in sorted(tf.io.gfile.glob(f"{self._directory}/{name}.*"), reverse=True):
            with suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(file)


def _copy(source: str, target: str) -> None:
    """Without tf.io.gfile.copy's two looks at what is there."""
    with open(source, "rb") as read, tf.io.gfile.GFile(target, "wb") as write:
        while chunk := read.read(_CHUNK_BYTES):
            write.write(chunk)
