"""What a training shows of itself: TensorBoard's event files, and the model in them.

The event files are written and read without TensorBoard, which TensorFlow 2.21 does not include.
"""

import itertools
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.models.model import variable_paths

# A flush to a bucket sends the whole file again.
_FLUSH_SECONDS = 30.0
# https://github.com/tensorflow/tensorflow/blob/v2.19.0/tensorflow/core/util/events_writer.h
_VERSION = "brain.Event:2"

_numbers = itertools.count()
# step -> value
Series = dict[int, float]


class Summaries:
    """An event file that this process writes.

    Not by TensorFlow's own operations: in a connected job they would run on the worker, each for a
    round trip, and its writer flushes after each of them. Any thread may write.
    """

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        tf.io.gfile.makedirs(directory)
        begun, host = int(time.time()), socket.gethostname()
        name = f"events.out.tfevents.{begun}.{host}.{os.getpid()}.{next(_numbers):04d}.v2"
        self._file = tf.io.TFRecordWriter(f"{directory}/{name}")
        self._clock, self._flushed = clock, -_FLUSH_SECONDS
        self._lock = threading.Lock()
        self._add(tf.compat.v1.Event(file_version=_VERSION))

    def scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write each of `scalars` by its name, such as `train/loss`."""
        values = {name: np.float32(value) for name, value in scalars.items()}
        self._write(step, "scalars", values)

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Write a PNG picture under `name`."""
        # A PNG file begins with 16 bytes that are always the same, then its width and height.
        size = struct.unpack(">II", png[16:24])
        # What TensorBoard's plug-in reads: width and height as text, then the pictures.
        content = [str(pixels).encode() for pixels in size] + [png]
        self._write(step, "images", {name: np.array(content, np.object_)})

    def histograms(self, step: int, histograms: Mapping[str, npt.NDArray[np.float64]]) -> None:
        """Write left edge, right edge and count of each bucket, (buckets, 3), by name."""
        self._write(step, "histograms", histograms)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()

    def _write(self, step: int, plugin: str, values: Mapping[str, npt.ArrayLike]) -> None:
        data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=data)
        summary = tf.compat.v1.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, metadata=metadata, tensor=tf.make_tensor_proto(value))
        self._add(tf.compat.v1.Event(step=step, summary=summary))

    def _add(self, event: tf.compat.v1.Event) -> None:
        event.wall_time = time.time()
        with self._lock:
            self._file.write(event.SerializeToString())
            if self._clock() - self._flushed >= _FLUSH_SECONDS:
                self._file.flush()
                self._flushed = self._clock()


def read_series(logdir: str) -> dict[str, Series]:
    """Return every scalar by its tag, in the order of steps.

    Where a killed training was started again, what the later start wrote for a step counts.
    """
    series: dict[str, Series] = {}
    for event in _events(logdir):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name in ("scalars", "") and value.tensor.dtype:
                array = tf.make_ndarray(value.tensor)
                if array.size == 1:
                    series.setdefault(value.tag, {})[event.step] = float(array)
    return {tag: dict(sorted(values.items())) for tag, values in sorted(series.items())}


def _events(logdir: str) -> Iterator[tf.compat.v1.Event]:
    """All events, file by file in the order of their start; what is half written ends a file."""
    names = tf.io.gfile.listdir(logdir) if tf.io.gfile.isdir(logdir) else []
    for name in sorted(name for name in names if name.startswith("events.out.")):
        records = tf.data.TFRecordDataset(f"{logdir}/{name}")
        try:
            for record in records.as_numpy_iterator():
                yield tf.compat.v1.Event.FromString(record)
        except tf.errors.DataLossError:
            continue


# --- Summarise the model for TensorBoard: weights and gradients.

_BUCKETS = 30

logger = logging.getLogger(__name__)


class ModelSummaries(Callback):
    """Writes what the training and its checkpoints have computed for themselves.

    The devices get no program of its own to compile: the gradients' norms are sums of the loop, and
    the weights are those of a checkpoint's copy.
    """

    def __init__(
        self, summaries: Summaries, paths: Sequence[str], interval: int, last_step: int
    ) -> None:
        """Write of the variables at `paths` every `interval` steps, 0: never, and at the last."""
        self._summaries, self._paths = summaries, paths
        self._interval, self._last = interval, last_step
        self._taken = self._copied = 0

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Write the norms of the gradient of each variable, if they are due."""
        if self._is_due(step, self._taken):
            self._taken = step // self._interval
            norms = {
                f"variables/gradient_norm/{path}": n for path, n in report.gradient_norms.items()
            }
            self._summaries.scalars(step, norms)

    def copied(self, step: int, model: tf.Module) -> None:
        """Write how the weights are spread in `model`, a checkpoint's copy; in the background."""
        if self._is_due(step, self._copied):
            self._copied = step // self._interval
            pairs = [pair for pair in variable_paths(model) if pair[0] in self._paths]
            weights = {f"weights/{path}": _histogram(v.numpy()) for path, v in pairs}
            self._summaries.histograms(step, weights)

    def _is_due(self, step: int, taken: int) -> bool:
        return bool(self._interval) and (step // self._interval != taken or step == self._last)


def _histogram(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return TensorBoard's format: left edge, right edge and count of each bucket."""
    # Widened if all weights are equal, such as a bias at the start.
    low, high = float(values.min()), float(values.max())
    spread = 0.0 if low < high else 1e-6
    counts, edges = np.histogram(values, _BUCKETS, (low - spread, high + spread))
    found: npt.NDArray[np.float64] = np.stack([edges[:-1], edges[1:], counts], axis=1)
    return found
