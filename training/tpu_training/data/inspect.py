"""`data inspect`: read a converted data set completely, verify it and sum up its contents."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data.corruption import (
    readable_part,
    without_corrupt_records,
    without_unreadable_records,
)
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.grid import draw_grid
from tpu_training.data.input.shards import Shards
from tpu_training.data.manifest import ENCODED, Manifest
from tpu_training.data.preprocessing import ops
from tpu_training.data.preprocessing.parse import parse_examples
from tpu_training.models.spec import LABELS, NOTHING, NUMBERS, DataSpec

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
            sizes = tf.map_fn(ops.image_size, features, fn_output_signature=tf.int32)
            return sizes, labels
        return tf.tile([tf.shape(features)[1:3]], (tf.shape(labels)[0], 1)), labels

    records = shards.read_all().batch(_BATCH)
    return records.map(measure, num_parallel_calls=tf.data.AUTOTUNE).as_numpy_iterator()


def _sizes(split: SplitContent) -> str:
    low, high = ("x".join(map(str, size)) for size in (split.smallest, split.largest))
    if split.mean_length:
        return f"{low} to {high} token ids, {split.mean_length:g} on average"
    return f"size {low}" if low == high else f"sizes from {low} to {high}"
