"""What a training shows of itself: TensorBoard's event files, pictures, weights, trackers.

The event files are written and read without TensorBoard, which TensorFlow 2.21 does not include.
"""

import dataclasses
import io
import itertools
import json
import logging
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.data.data_set import DataSet
from tpu_training.data.pipeline import evaluation_batches
from tpu_training.errors import InputError, TrainingError, require, require_plots
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.loop.evaluation import Evaluation
from tpu_training.loop.state import TrainState, total_steps
from tpu_training.models.model import variable_paths
from tpu_training.models.params import Params

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

    def graph(self, step: int, graph: tf.Graph) -> None:
        """Write a model's graph."""
        definition = graph.as_graph_def(add_shapes=True).SerializeToString()
        self._add(tf.compat.v1.Event(step=step, graph_def=definition))

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


# --- Summarise the model for TensorBoard: predictions on images, weights, gradients, graph.

_EXAMPLES = 32
_BUCKETS = 30
# Features and labels of some examples.
_Sample = tuple[npt.NDArray[Any], npt.NDArray[Any]]

_RIGHT, _WRONG, _TRUE = (0, 150, 60), (210, 30, 30), (90, 90, 90)
_BORDER, _GAP = 2, 8
_FONT_SIZE = 11
# Two lines.
_CAPTION = 28
# Small pictures are enlarged to about this many pixels.
_SMALLEST_SIDE = 56

logger = logging.getLogger(__name__)


class ModelSummaries(Callback):
    """Writes what the training, its checkpoints and evaluations have computed for themselves.

    The devices get no program of its own to compile: the gradients' norms are sums of the loop, the
    weights are those of a checkpoint's copy, and the predictions are an evaluation's.
    """

    def __init__(
        self,
        cluster: Cluster,
        params: Params,
        data: DataSet,
        state: TrainState,
        summaries: Summaries,
    ) -> None:
        """Write to `summaries`, every `snapshot_interval` steps; 0 writes nothing."""
        self._cluster, self._params, self._data = cluster, params, data
        self._state, self._summaries = state, summaries
        self._interval = params.snapshot_interval
        self._taken = self._copied = 0
        self._last = total_steps(params, data.manifest)
        self._sample = cache(self._read_sample)

    def start(self, step: int) -> None:
        """Write the model's graph, which is traced but not compiled."""
        if self._interval:
            self._summaries.graph(step, self._graph())

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
            trained = set(self._state.paths)
            pairs = [pair for pair in variable_paths(model) if pair[0] in trained]
            weights = {f"weights/{path}": _histogram(v.numpy()) for path, v in pairs}
            self._summaries.histograms(step, weights)

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Draw the first examples of an evaluation with their true and predicted classes."""
        if not (self._interval and self._state.task.gives_classes):
            return
        sample = self._sample(evaluation.split, len(evaluation.first))
        labels = sample[1]
        classes = evaluation.first[: len(labels)]
        if self._data.manifest.spec.kind == "image":
            self._draw(step, f"{evaluation.split}/predictions", sample, classes)
        right = int((classes == labels).sum())
        logger.info("snapshot: step %d, %d of %d samples right", step, right, len(classes))

    def _is_due(self, step: int, taken: int) -> bool:
        return bool(self._interval) and (step // self._interval != taken or step == self._last)

    def _draw(self, step: int, name: str, sample: _Sample, classes: npt.NDArray[np.int32]) -> None:
        try:
            require_plots("a picture of examples")
        except InputError as error:
            logger.warning("snapshot: %s", error)
            return
        png = draw_grid(*sample, classes, self._data.manifest.class_names)
        self._summaries.picture(step, name, png)

    def _read_sample(self, split: str, share: int) -> _Sample:
        """Return features and labels of the first replica's first examples of an evaluation."""
        each = min(_EXAMPLES, share)
        size = each * self._cluster.replicas
        few = dataclasses.replace(self._params, evaluation_batch_size=size)
        with self._cluster.on_loop_device():
            batch = evaluation_batches(self._data, self._cluster, few, split)[0]()
        local = self._cluster.strategy.experimental_local_results
        features, labels, weights = (local(part)[0].numpy() for part in batch)
        return features[weights > 0], labels[weights > 0]

    def _graph(self) -> tf.Graph:
        state, spec = self._state, self._data.manifest.input_spec(self._params.image_size)

        def forward(features: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
            inputs, _ = state.prepare(features, targets, False)
            return state.forward(inputs, training=False)

        features = tf.TensorSpec((_EXAMPLES, *spec.shape), spec.dtype)
        targets = tf.TensorSpec((_EXAMPLES, *spec.target_shape), spec.target_dtype)
        with self._cluster.on_loop_device():
            traced = tf.function(forward, autograph=False).get_concrete_function(features, targets)
        graph: tf.Graph = traced.graph
        return graph


def _histogram(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return TensorBoard's format: left edge, right edge and count of each bucket."""
    # Widened if all weights are equal, such as a bias at the start.
    low, high = float(values.min()), float(values.max())
    spread = 0.0 if low < high else 1e-6
    counts, edges = np.histogram(values, _BUCKETS, (low - spread, high + spread))
    found: npt.NDArray[np.float64] = np.stack([edges[:-1], edges[1:], counts], axis=1)
    return found


def draw_grid(
    images: npt.NDArray[np.generic],
    labels: npt.NDArray[np.generic],
    classes: npt.NDArray[np.generic],
    names: Sequence[str] = (),
) -> bytes:
    """Return a PNG of all `images` (count, height, width, channels of bytes).

    Below each is the predicted class and, where that is wrong, the true one in a second line; by
    their `names` where there are some, shortened to the picture's width.
    """
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw
    from PIL.ImageFont import truetype

    factor = max(1, math.ceil(_SMALLEST_SIDE / images.shape[2]))
    height, width = images.shape[1] * factor, images.shape[2] * factor
    framed_height, framed_width = height + 2 * _BORDER, width + 2 * _BORDER
    columns = math.ceil(math.sqrt(len(images)) * 1.4)
    rows = math.ceil(len(images) / columns)
    size = (columns * (framed_width + _GAP), rows * (framed_height + _CAPTION + _GAP))
    # matplotlib brings the font along; Pillow's own may be one of pixels.
    font = truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", _FONT_SIZE)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for position, image in enumerate(images.astype(np.uint8)):
        left = position % columns * (framed_width + _GAP)
        top = position // columns * (framed_height + _CAPTION + _GAP)
        label, found = int(labels[position]), int(classes[position])
        colour = _RIGHT if label == found else _WRONG
        sheet.paste(colour, (left, top, left + framed_width, top + framed_height))
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        enlarged = picture.resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (left + _BORDER, top + _BORDER))
        lines = [(found, colour), (label, _TRUE)] if label != found else [(found, colour)]
        for line, (number, ink) in enumerate(lines):
            text = names[number] if names else str(number)
            while len(text) > 2 and draw.textlength(text, font) > framed_width + _GAP - 2:
                text = f"{text.removesuffix('…')[:-1]}…"
            place = (left, top + framed_height + line * _CAPTION // 2)
            draw.text(place, text, ink, font)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    return content.getvalue()


# --- Weights & Biases and MLflow, through their own libraries, which read their own settings.

_FILE_NAME, _FORMAT = "tracker.json", 1


class Wandb:
    """A run of Weights & Biases: WANDB_PROJECT, WANDB_API_KEY, WANDB_MODE and the like count."""

    def __init__(self, known: str | None, name: str, params: Mapping[str, Any]) -> None:
        library = require("wandb", "wandb", "wandb", "--tracker=wandb")
        self._run = library.init(id=known, name=name, config=dict(params), resume="allow")
        self.id = str(self._run.id)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send values."""
        self._run.log(dict(scalars), step=step)

    def finish(self, whole: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if whole else 1)


class Mlflow:
    """A run of MLflow: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and the like count."""

    def __init__(self, known: str | None, name: str, params: Mapping[str, Any]) -> None:
        self._library = require("mlflow", "mlflow-skinny", "mlflow", "--tracker=mlflow")
        self.id = str(self._library.start_run(run_id=known, run_name=name).info.run_id)
        if known is None:  # A run's parameters can't be changed.
            self._library.log_params(dict(params))

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send values."""
        self._library.log_metrics(dict(scalars), step=step)

    def finish(self, whole: bool) -> None:
        """End the run."""
        self._library.end_run("FINISHED" if whole else "KILLED")


_RUNS: Mapping[str, type[Wandb] | type[Mlflow]] = {"wandb": Wandb, "mlflow": Mlflow}


class Tracker(Callback):
    """Sends a training's parameters, curves and evaluations to a tracker.

    A job that is started again continues its run, whose id is in the model directory. A value that
    can't be sent does not end the training: it is logged.
    """

    def __init__(self, kind: str, model_dir: str, params: Mapping[str, Any]) -> None:
        self._kind, self._name, self._params = kind, model_dir, params
        self._path = f"{model_dir.rstrip('/')}/{_FILE_NAME}"
        self._run: Wandb | Mlflow | None = None

    def start(self, step: int) -> None:
        """Start or continue the run. Raises TrainingError if the tracker does not answer."""
        known = files.read_json(self._path).get(self._kind)
        try:
            self._run = run = _RUNS[self._kind](known, self._name, self._params)
        except TrainingError:
            raise
        except Exception as error:  # Each library has its own errors.
            raise TrainingError(f"--tracker={self._kind}: no run was started ({error})") from error
        files.write_text(self._path, json.dumps({"format": _FORMAT, self._kind: run.id}) + "\n")

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Send the loop's figures."""
        figures = {
            "train/loss": report.loss,
            **{f"train/{name}": value for name, value in report.metrics.items()},
            "train/learning_rate": report.learning_rate,
            "train/gradient_norm": report.gradient_norm,
            "train/steps_per_second": report.count / report.seconds,
        }
        self._send(lambda run: run.log(step, figures))

    def after_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Send the figures of an evaluation."""
        self._send(lambda run: run.log(step, figures))

    def close(self) -> None:
        """End the run; as a whole one unless an exception ends the training."""
        whole = sys.exc_info()[0] is None
        self._send(lambda run: run.finish(whole))

    def _send(self, send: Callable[[Wandb | Mlflow], None]) -> None:
        if not self._run:
            return
        try:
            send(self._run)
        except Exception as error:  # Each library has its own errors.
            logger.warning("%s: %s", self._kind, str(error).partition("\n")[0])
