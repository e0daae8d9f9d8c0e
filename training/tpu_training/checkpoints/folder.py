"""A directory or bucket prefix that keeps the last few checkpoints."""

import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress

import tensorflow as tf

from tpu_training.checkpoints.reader import checkpoint_paths
from tpu_training.errors import LeaseError

_STATE_FILE = "checkpoint"
_DATA = re.compile(r"(ckpt-\d+)\.data-.+")
_CHUNK_BYTES = 8 << 20


class CheckpointFolder:
    """A tf.train.CheckpointManager that needs a quarter of the calls to a bucket.

    TensorFlow writes to temporary names and renames them, which in a bucket is a copy, and checks
    for each file before it touches it: 45 calls per checkpoint. Here the checkpoint is written on
    this machine first and then copied under its final name, the index last. An incomplete
    checkpoint therefore has no index; reader.py verifies the tensors, too.
    """

    def __init__(self, directory: str, keep: int, confirm: Callable[[], None]) -> None:
        """Keep the last `keep` checkpoints in `directory`; `confirm` before each change of it."""
        self._confirm = confirm
        self._directory = directory
        self._keep = keep
        self._kept: list[str] | None = None

    def add(
        self, checkpoint: tf.train.Checkpoint, step: int, options: tf.train.CheckpointOptions | None
    ) -> str:
        """Write `checkpoint` as the one of `step`; return its path. Raises TensorFlow's errors."""
        if self._kept is None:
            tf.io.gfile.makedirs(self._directory)
            self._kept = [os.path.basename(path) for path in checkpoint_paths(self._directory)]
            self._kept.reverse()
            self._delete_halves(self._kept)
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as here:
            local = tf.train.CheckpointManager(checkpoint, here, max_to_keep=1)
            name = os.path.basename(local.save(checkpoint_number=step, options=options))
            files = [file for file in os.listdir(here) if file.startswith(f"{name}.")]
            self._take_in(here, sorted(files, key=lambda file: file.endswith(".index")))
        kept = [*(other for other in self._kept if other != name), name]
        outdated, self._kept = kept[: -self._keep], kept[-self._keep :]
        self._confirm()
        self._write_state(self._kept)
        for old in outdated:
            self._confirm()
            self._delete(old)
        return f"{self._directory}/{name}"

    def _take_in(self, source: str, files: list[str]) -> None:
        """Copy `files` from the folder `source`; remove them again when one can't be written."""
        try:
            for file in files:
                self._confirm()
                _copy(f"{source}/{file}", f"{self._directory}/{file}")
        except LeaseError:
            raise  # Files of these names may be somebody else's by now.
        except BaseException:
            for file in reversed(files):
                with suppress(tf.errors.OpError):
                    tf.io.gfile.remove(f"{self._directory}/{file}")
            raise

    def _write_state(self, names: list[str]) -> None:
        """Write the state file from which tf.train.latest_checkpoint learns the newest."""
        lines = [f'model_checkpoint_path: "{names[-1]}"\n']
        lines += [f'all_model_checkpoint_paths: "{name}"\n' for name in names]
        # An object appears in a bucket atomically; a file on disk needs a rename.
        in_bucket = "://" in self._directory
        path = f"{self._directory}/{_STATE_FILE}"
        unfinished = path if in_bucket else f"{path}.unfinished"
        with tf.io.gfile.GFile(unfinished, "w") as file:
            file.write("".join(lines))
        if not in_bucket:
            tf.io.gfile.rename(unfinished, path, overwrite=True)

    def _delete_halves(self, whole: list[str]) -> None:
        """Delete data without an index: its trainer was killed while it wrote or deleted them."""
        for file in tf.io.gfile.listdir(self._directory):
            data = _DATA.fullmatch(file)
            if data and data[1] not in whole:
                self._confirm()
                self._remove(file)

    def _delete(self, name: str) -> None:
        """Delete the index first, so that an interrupted deletion leaves no valid checkpoint."""
        for file in sorted(tf.io.gfile.glob(f"{self._directory}/{name}.*"), reverse=True):
            self._remove(os.path.basename(file))

    def _remove(self, file: str) -> None:
        with suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(f"{self._directory}/{file}")


def _copy(source: str, target: str) -> None:
    """Copy a file without the two existence checks of tf.io.gfile.copy."""
    with open(source, "rb") as read, tf.io.gfile.GFile(target, "wb") as write:
        while chunk := read.read(_CHUNK_BYTES):
            write.write(chunk)
