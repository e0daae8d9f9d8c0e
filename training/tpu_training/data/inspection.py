"""`data inspect`: read a converted data set completely, verify it and sum up its contents."""

from __future__ import annotations

import dataclasses
import io
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data import files, preprocessing
from tpu_training.data.corruption import (
    readable_part,
    without_corrupt_records,
    without_unreadable_records,
)
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.manifest import ENCODED, Manifest
from tpu_training.data.preprocessing import parse_examples
from tpu_training.data.shards import Shards
from tpu_training.errors import InputError, require_plots
from tpu_training.models.spec import CLASS, LABELS, NOTHING, NUMBERS, DataSpec

_BATCH = 512


@dataclass(frozen=True)
class SplitContent:
    """The contents of a split.

    Attributes:
        classes: The number of examples of each class, or of tokens or pixels that have it, or of
            examples with each label; nothing for other targets.
        smallest: The least height and width of images, or length of texts in token ids.
        largest: The greatest, likewise.
        mean_length: The mean length of texts; 0 for images.
    """

    examples: int
    files: int
    bytes: int
    classes: tuple[int, ...]
    smallest: tuple[int, ...]
    largest: tuple[int, ...]
    mean_length: float


@dataclass(frozen=True)
class Inspection:
    """A data set whose files match its manifest."""

    manifest: Manifest
    splits: dict[str, SplitContent]

    def as_json(self) -> dict[str, Any]:
        """Return the contents for programs."""
        spec = self.manifest.spec
        return {
            "name": self.manifest.name,
            "kind": spec.kind,
            "encoding": self.manifest.encoding,
            "shape": list(spec.shape),
            "vocabulary_size": spec.vocabulary,
            "targets": spec.targets,
            "classes": spec.classes,
            "class_names": list(self.manifest.class_names),
            "checksums": "verified",
            "splits": {name: dataclasses.asdict(split) for name, split in self.splits.items()},
        }

    def __str__(self) -> str:
        """Format the contents for people."""
        spec = self.manifest.spec
        shape = "x".join(str(size) if size else "?" for size in spec.shape)
        lines = [f"{self.manifest.name}: {spec.kind}s, {self.manifest.encoding}, {shape}"]
        if spec.vocabulary:
            lines.append(f"vocabulary: {spec.vocabulary} tokens in {self.manifest.vocabulary}")
        names = list(self.splits)
        for name, split in self.splits.items():
            lines.append(
                f"{name}: {split.examples} examples in {split.files} files, "
                f"{split.bytes / 2**20:.1f} MiB, {_sizes(split)}; checksums verified"
            )
        if spec.targets in (NUMBERS, NOTHING):
            return "\n".join([*lines, f"targets: {spec.targets}"])
        lines.append("class".ljust(24) + "".join(name.rjust(10) for name in names))
        for number in range(spec.classes):
            label = self.manifest.class_names[number] if self.manifest.class_names else str(number)
            counts = [f"{split.classes[number]}".rjust(10) for split in self.splits.values()]
            lines.append(label[:23].ljust(24) + "".join(counts))
        return "\n".join(lines)


def inspect(directory: str, grid: str | None) -> Inspection:
    """Read and decode every example; draw the first images of each class into the file `grid`.

    Raises:
        DataError: A file is missing or does not match the manifest.
    """
    data = open_data(directory)
    without_corrupt_records(data, limit=0)
    if data.manifest.encoding == ENCODED:
        without_unreadable_records(data, limit=0)  # Sizes are read without the pixels.
    try:
        splits = {name: _look(data, name) for name in data.manifest.splits}
    except tf.errors.InvalidArgumentError as error:
        readable_part(data, 0, error)
        raise
    if grid:
        draw_grid(data, grid)
    return Inspection(data.manifest, splits)


def _look(data: DataSet, name: str) -> SplitContent:
    manifest, split = data.manifest, data.manifest.split(name)
    classes = np.zeros(manifest.spec.classes, np.int64)
    examples = 0
    sizes: list[npt.NDArray[np.int32]] = []
    for batch_sizes, labels in _sizes_and_labels(data.shards(name), manifest):
        examples += len(labels)
        classes += _count(labels, manifest.spec)
        sizes.append(batch_sizes)
    every = np.concatenate(sizes)
    return SplitContent(
        examples=examples,
        files=len(split.files),
        bytes=split.bytes,
        classes=tuple(classes.tolist()),
        smallest=tuple(every.min(axis=0).tolist()),
        largest=tuple(every.max(axis=0).tolist()),
        mean_length=round(float(every.mean()), 1) if manifest.spec.kind == "text" else 0.0,
    )


def _count(targets: npt.NDArray[Any], spec: DataSpec) -> npt.NDArray[np.int64]:
    if spec.targets in (NUMBERS, NOTHING):
        return np.zeros(spec.classes, np.int64)
    if spec.targets == LABELS:
        return np.asarray(targets.sum(axis=0), np.int64)
    return np.bincount(targets[targets >= 0].astype(np.int64), minlength=spec.classes)


def _sizes_and_labels(shards: Shards, manifest: Manifest) -> Any:
    """Yield (count, 2) heights and widths, or (count, 1) lengths, with the labels."""

    def measure(serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features, labels = parse_examples(serialised, manifest)
        if manifest.spec.kind == "text":
            return tf.math.count_nonzero(features, axis=1, keepdims=True, dtype=tf.int32), labels
        if manifest.encoding == ENCODED:
            sizes = tf.map_fn(preprocessing.image_size, features, fn_output_signature=tf.int32)
            return sizes, labels
        return tf.tile([tf.shape(features)[1:3]], (tf.shape(labels)[0], 1)), labels

    records = shards.read_all().batch(_BATCH)
    return records.map(measure, num_parallel_calls=tf.data.AUTOTUNE).as_numpy_iterator()


def _sizes(split: SplitContent) -> str:
    low, high = ("x".join(map(str, size)) for size in (split.smallest, split.largest))
    if split.mean_length:
        return f"{low} to {high} token ids, {split.mean_length:g} on average"
    return f"size {low}" if low == high else f"sizes from {low} to {high}"


_ROWS, _COLUMNS = 10, 10
# Classes that have not shown up by then stay empty.
_MOST_READ = 20_000
_GRID_BATCH = 256
_INCHES = 0.9


def draw_grid(data: DataSet, path: str) -> None:
    """Draw up to ten training images of each of the first ten classes into a PNG file.

    Raises InputError for texts, without matplotlib and where `path` can't be written.
    """
    manifest = data.manifest
    if manifest.spec.kind != "image" or manifest.spec.targets != CLASS:
        raise InputError(f"--grid={path}: the data set {manifest.name} holds no images of classes")
    require_plots(f"--grid={path}")
    from matplotlib.figure import Figure

    images = _first_images(data)
    rows = len(images)
    figure = Figure(figsize=(_INCHES * (_COLUMNS + 2), _INCHES * rows), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False)
    for label, row in images.items():
        name = manifest.class_names[label] if manifest.class_names else str(label)
        for axis, image in itertools.zip_longest(axes[label], row):
            axis.set_axis_off()
            if image is not None:
                axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
        axes[label][0].text(
            -0.1, 0.5, name, transform=axes[label][0].transAxes, ha="right", va="center"
        )
    picture = io.BytesIO()
    figure.savefig(picture, dpi=100, format="png")
    files.write_bytes(path, picture.getvalue())


def _first_images(data: DataSet) -> dict[int, list[npt.NDArray[np.uint8]]]:
    """Up to ten images of each of the first ten classes."""
    manifest = data.manifest
    found: dict[int, list[npt.NDArray[np.uint8]]] = {
        label: [] for label in range(min(_ROWS, manifest.spec.classes))
    }
    for serialised in data.shards("train").read_all().take(_MOST_READ).batch(_GRID_BATCH):
        features, labels = parse_examples(serialised, manifest)
        for feature, label in zip(features, labels.numpy().tolist(), strict=True):
            if len(found.get(label, [None] * _COLUMNS)) < _COLUMNS:
                encoded = manifest.encoding == ENCODED
                image = (
                    preprocessing.decode(feature, manifest.spec.shape[2]) if encoded else feature
                )
                found[label].append(image.numpy())
        if all(len(images) == _COLUMNS for images in found.values()):
            break
    return found
