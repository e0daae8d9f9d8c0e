"""A job's checkpoints in `<model-dir>/checkpoints`, and its best one in `<model-dir>/best`.

They are written in the background; a restart reads the newest complete one.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Any

import tensorflow as tf

import tpu_training.checkpoints.reader as reader
from tpu_core.lease import LeaseError, NoLease, Right
from tpu_training.cluster.cluster import Cluster
from tpu_training.cluster.google import is_bucket
from tpu_training.errors import CheckpointError, DivergedError
from tpu_training.models.params import Params

# A checkpoint that differs in one of these would fit only by accident: an optimizer's moments are
# those of the variables that are trained.
_IDENTITY = ("model=", "optimizer=", "freeze=", "checkpoint_weights=")

_STATE_FILE = "checkpoint"
_DATA = re.compile(r"(ckpt-\d+)\.data-.+")
_CHUNK_BYTES = 8 << 20

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one job.

    This process reads and writes the files, because a TPU's host can't ("File system scheme
    '[local]' not implemented"). As a context manager it waits at the end for a pending write.
    """

    def __init__(
        self,
        model_dir: str,
        state: Any,
        record: reader.JobRecord,
        keep: int,
        cluster: Cluster,
        lease: Right | None = None,
    ) -> None:
        """Keep the last `keep` checkpoints of `state` under `model_dir`, held by `lease`.

        `state` is a TrainState, of a floor above this one: model, optimizer, step, task, average.
        Checkpoints are without its `unsaved` variables.
        """
        self._lease = lease or NoLease()
        folder = model_dir.rstrip("/")
        self.directory = f"{folder}/checkpoints"
        self._best_directory = f"{folder}/best"
        self.record = record
        parts = {"model": state.model, "optimizer": state.optimizer, "step": state.step}
        with_average = parts | ({"average": state.average} if state.average else {})
        self._without_average, self._checkpoint = (
            reader.without(tf.train.Checkpoint(record=record, **each), state.unsaved)
            for each in (parts, with_average)
        )
        self._average = state.average
        self._cluster = cluster
        self._task = state.task
        self.saved_step = 0 if cluster.leads else None
        """The step of the newest checkpoint that is whole; None where another host saves."""
        self.copied: Callable[[int, tf.Module], None] = lambda step, model: None
        """Is called in the background with a saved step and the copy of its model here."""
        self._keep = {self.directory: keep, self._best_directory: 1}

    def __enter__(self) -> Checkpoints:
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

        def done(step: int) -> None:
            self.saved_step = step
            self.copied(step, self._writer.copy.model)

        self._writer.save(self.directory, step, done)

    def keep_best(self, step: int, figures: Mapping[str, float]) -> reader.Best:
        """Save the state of `step` when its `figures` are the best yet; return the best ones."""
        if not self.record.best or self._task.better(figures, self.record.best):
            self.wait()  # The pending checkpoint must record the best one before it.
            self.record.best = {"step": step, **figures}
            self._writer.save(self._best_directory, step)
            best = self._task.best
            logger.info("best so far: step=%d %s=%.4f", step, best, figures[best])
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
        path = reader.newest_whole(self.directory)
        if path:
            if self._cluster.leads:
                self.saved_step = int(path.rpartition("-")[2])
            self._refuse_another_identity(path)
            reader.refuse_another_base(path, self.record.base)
            differences = self.record.differences(path)
            # Of the model's own parameters, on which shapes depend, an error names the old values.
            own = [d for d in differences if d.partition("=")[0] not in Params.__dataclass_fields__]
            self._restore(path, _trained_with(own))
            if differences:
                logger.warning(
                    "checkpoint: %s %s; training continues with the new values",
                    path,
                    _trained_with(differences),
                )
            # The best checkpoint may be newer than the last regular one.
            best = tf.train.latest_checkpoint(self._best_directory)
            self.record.best = reader.best_of(best) if best else None
        return path

    def _restore(self, path: str, hint: str) -> None:
        """Restore `path`; an average that it lacks starts with the restored weights."""
        begins = self._average is not None and not reader.has_averages(path)
        checkpoint = self._without_average if begins else self._checkpoint
        reader.restore(checkpoint, path, self._cluster.this_process, hint)
        if self._average is not None and begins:
            self._average.reset()

    def describe_latest(self) -> str:
        """Describe the checkpoint from which a restart would continue."""
        paths = reader.checkpoint_paths(self.directory)
        if not paths:
            return "no checkpoint has been saved yet"
        return f"the last checkpoint, {paths[0]}, is unchanged"

    def _refuse_another_identity(self, path: str) -> None:
        differences = self.record.differences(path)
        if any(had.startswith(_IDENTITY) for had in differences):
            raise CheckpointError(
                f"{path} belongs to another model, because it {_trained_with(differences)}; "
                f"{reader.ANOTHER_DIRECTORY}"
            )
        if had := self.record.has_seen_more(path):
            fraction = self.record.params["validation_fraction"]
            raise CheckpointError(
                f"--validation_fraction={fraction:g}: {path} {had}, so it has learned from "
                "examples that would now be held out; use the same values, or "
                f"{reader.ANOTHER_DIRECTORY}"
            )


def _trained_with(differences: Sequence[str]) -> str:
    return f"was trained with {', '.join(differences)}" if differences else ""


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

        Before each change `confirm` raises an error if another job has the folders now. Of several
        hosts one writes.
        """
        self._writes = cluster.leads
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
                f"a weight is no longer finite at step {step}, although the loss is; lower "
                "--learning_rate; the last checkpoint is unchanged"
            )
        if self._writes:
            self._writing = self._thread.submit(self._write, self._folders[folder], step, done)
        else:
            self._snapshot.drop()

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


class Snapshot:
    """A second set of a checkpoint's variables in this process, in the same object tree.

    A checkpoint written from the copy is an ordinary one: tf.train.Checkpoint restores it into the
    originals.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint, cluster: Cluster) -> None:
        self._cluster = cluster
        self._originals: list[tf.Variable] = []
        self._copies: list[tf.Variable] = []
        self._values: list[tf.Tensor] = []
        self._empty: list[tf.Tensor] = []
        zeros: dict[Any, tf.Tensor] = {}

        def copy(original: tf.Variable) -> tf.Variable:
            # A variable shares the memory of what is assigned to it: here all of one shape do.
            kind = tuple(original.shape), original.dtype
            if kind not in zeros:
                zeros[kind] = tf.zeros(*kind)
            self._empty.append(zeros[kind])
            made = tf.Variable(zeros[kind], trainable=False)
            self._originals.append(original)
            self._copies.append(made)
            return made

        with tf.device(cluster.this_process):
            self.checkpoint = reader.rebuilt(checkpoint, copy)
        # Asked now: a value on a worker that died never says where it is, and lets no thread run.
        self._hosts = [host_of(original.device) for original in self._originals]
        self._read = tf.function(self._read_all)

    def take(self) -> bool:
        """Capture the current values; return whether all of them are finite.

        On a CPU nothing is copied yet: TensorFlow copies on write while a value is in use. An
        accelerator's memory has no room for a second set, so its values go to the memory of its
        host, from where the network takes its time.
        """
        self._cluster.fetch()
        with self._cluster.on_loop_device():
            finite, *self._values = self._read()
        # A sum can also be too large for its type.
        return bool(finite) or all(map(_is_finite, self._values))

    def fill(self) -> None:
        """Bring the captured values into the copy, one by one; may be called from any thread.

        Those of the last save go first, so that this process never holds more than one set.
        """
        with tf.device(self._cluster.this_process):
            for copy, empty in zip(self._copies, self._empty, strict=True):
                copy.assign(empty)
            _return_memory()
            for copy in self._copies:
                copy.assign(tf.identity(self._values.pop(0)))

    def drop(self) -> None:
        """Let go of the captured values."""
        self._values.clear()

    def _read_all(self) -> list[tf.Tensor]:
        values = [original.read_value() for original in self._originals]
        # The steps wait: on a CPU, a sum takes half the time of a look at each number.
        finite = [tf.math.is_finite(tf.reduce_sum(v)) for v in values if v.dtype.is_floating]
        for index, host in enumerate(self._hosts):
            if host:
                with tf.device(host):
                    values[index] = tf.identity(values[index])
        return [tf.reduce_all(tf.stack(finite)), *values]


def _return_memory() -> None:
    """Return what is free to the system: glibc keeps it for the threads that had it."""
    with suppress(AttributeError):  # Another C library.
        ctypes.CDLL(None).malloc_trim(0)


def _is_finite(value: tf.Tensor) -> bool:
    if not value.dtype.is_floating:
        return True
    with tf.device(value.backing_device):
        return bool(tf.reduce_all(tf.math.is_finite(value)))


def host_of(device: str) -> str:
    """Return the CPU of the machine that `device` is in; "" where it is one itself."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "CPU":
        return ""
    return str(spec.replace(device_type="CPU", device_index=0).to_string())


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
            paths = reader.checkpoint_paths(self._directory)
            self._kept = [os.path.basename(path) for path in reversed(paths)]
            self._delete_halves(self._kept)
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            local = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
            name = os.path.basename(local.save(checkpoint_number=step, options=options))
            files = [file for file in os.listdir(folder) if file.startswith(f"{name}.")]
            self._take_in(folder, sorted(files, key=lambda file: file.endswith(".index")))
        kept = [*(other for other in self._kept if other != name), name]
        outdated, self._kept = kept[: -self._keep], kept[-self._keep :]
        self._confirm()
        self._write_state(self._kept)
        for old in outdated:
            self._confirm()
            # The index first, so that an interrupted deletion leaves no valid checkpoint.
            for file in sorted(tf.io.gfile.glob(f"{self._directory}/{old}.*"), reverse=True):
                self._remove(os.path.basename(file))
        return f"{self._directory}/{name}"

    def _take_in(self, source: str, files: list[str]) -> None:
        """Copy `files` from the folder `source`; remove them again when one can't be written."""
        try:
            for file in files:
                self._confirm()
                _copy(f"{source}/{file}", f"{self._directory}/{file}")
        except LeaseError:
            raise  # Files of these names may belong to another job now.
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
        in_bucket = is_bucket(self._directory)
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

    def _remove(self, file: str) -> None:
        with suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(f"{self._directory}/{file}")


def _copy(source: str, target: str) -> None:
    """Copy a file without the two existence checks of tf.io.gfile.copy."""
    with open(source, "rb") as read, tf.io.gfile.GFile(target, "wb") as write:
        while chunk := read.read(_CHUNK_BYTES):
            write.write(chunk)
