"""Summarise the model for TensorBoard: predictions on images, weights, gradients, graph."""

import dataclasses
import io
import logging
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import evaluation_batches
from tpu_training.errors import InputError, require_plots
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.loop.evaluation import Evaluation
from tpu_training.loop.state import TrainState, total_steps
from tpu_training.models.names import variable_paths
from tpu_training.models.params import Params
from tpu_training.monitoring.summaries import Summaries

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
