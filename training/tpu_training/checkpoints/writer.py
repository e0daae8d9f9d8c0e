"""Write checkpoints in the background, one at a time."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import tensorflow as tf

from tpu_training.checkpoints.copies import Snapshot
from tpu_training.checkpoints.folder import CheckpointFolder
from tpu_training.cluster.cluster import Cluster
from tpu_training.errors import DivergedError

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """A background thread, the copy of the state that it writes, and its target folders."""

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        cluster: Cluster,
        keep: dict[str, int],
        confirm: Callable[[], None],
    ) -> None:
        """Write `checkpoint` to the folders in `keep`, which maps each to how many it keeps.

        Before each change `confirm` raises an error if another job has the folders now.
        """
        self._snapshot = Snapshot(checkpoint, cluster)
        self.copy = self._snapshot.checkpoint
        self._options = tf.train.CheckpointOptions(experimental_io_device=cluster.this_process)
        self._folders = {
            path: CheckpointFolder(path, count, confirm) for path, count in keep.items()
        }
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, folder: str, step: int, done: Callable[[int], None] = lambda step: None) -> None:
        """Copy the state of `step` now and write it to `folder` while training continues.

        Calls `done` with the step once it is whole. Waits for the previous write first and raises
        its error.

        Raises:
            DivergedError: A variable is not finite; nothing is written.
        """
        self.wait()
        if not self._snapshot.take():
            raise DivergedError(
                f"a weight is no longer finite at step {step}, though the loss still is; "
                "lower --learning_rate; the last checkpoint stays as it is"
            )
        self._writing = self._thread.submit(self._write, self._folders[folder], step, done)

    def wait(self) -> None:
        """Wait for a pending write; raise its error."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def _write(self, folder: CheckpointFolder, step: int, done: Callable[[int], None]) -> None:
        self._snapshot.fill()
        path = folder.add(self._snapshot.checkpoint, step, self._options)
        done(step)
        logger.info("checkpoint: saved %s", path)
