"""What a dataset holds, and which of its files is not what its manifest says.

`data inspect` reads everything and sums it up. After a step that could not read a record, a
training compares checksums, to name the file: TensorFlow mostly says only where in a file it was.
"""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data import data_set, files, function, preprocessing
from tpu_training.data.manifest import ARRAY, ENCODED, DataFile, Manifest
from tpu_training.errors import DataError, describe, find_known_error
from tpu_training.models import spec as specs

_MEASURED_AT_ONCE = 512
_WITHOUT_CLASSES = (specs.NUMBERS, specs.NOTHING, specs.SEVERAL)
# Entries of the catalog of errors, and what the errors of a TPU's compiler say.
_OF_DATA = ("corrupt-data", "label-out-of-range")
_OF_COMPILER = ("Compilation failure", "TPUReplicate")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SplitContent:
    """The contents of a split.

    Attributes:
        classes: The number of examples of each class, or of tokens or pixels that have it, or of
            examples with each label; nothing for other targets.
        smallest: The least height and width of images, or length of texts in token ids; nothing
            for arrays.
        largest: The greatest, likewise.
        mean_length: The mean length of texts; 0 for others.
    """

    examples: int
    files: int
    bytes: int
    classes: tuple[int, ...]
    smallest: tuple[int, ...]
    largest: tuple[int, ...]
    mean_length: float

    def sizes(self) -> str:
        """Say how large the examples are; nothing where all have one shape of any kind."""
        if not self.smallest:
            return ""
        low, high = ("x".join(map(str, size)) for size in (self.smallest, self.largest))
        if self.mean_length:
            return f", {low} to {high} token ids, {self.mean_length:g} on average"
        return f", size {low}" if low == high else f", sizes from {low} to {high}"


@dataclass(frozen=True)
class Inspection:
    """A dataset whose files match its manifest."""

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
            "dtype": spec.dtype,
            "inputs": spec.inputs,
            "vocabulary_size": spec.vocabulary,
            "targets": spec.targets,
            "several": spec.several,
            "weighted": self.manifest.weighted,
            "classes": spec.classes,
            "class_names": list(self.manifest.class_names),
            "checksums": "verified",
            "splits": {name: dataclasses.asdict(split) for name, split in self.splits.items()},
        }

    def __str__(self) -> str:
        """Format the contents for people."""
        spec = self.manifest.spec
        form = "x".join(str(size) if size else "?" for size in spec.shape)
        if self.manifest.encoding == ARRAY:
            form = function.in_words(spec)
        lines = [f"{self.manifest.name}: {spec.kind}s, {self.manifest.encoding}, {form}"]
        if spec.vocabulary:
            lines.append(f"vocabulary: {spec.vocabulary} tokens in {self.manifest.vocabulary}")
        names = list(self.splits)
        for name, split in self.splits.items():
            lines.append(
                f"{name}: {split.examples} examples in {split.files} files, "
                f"{split.bytes / 2**20:.1f} MiB{split.sizes()}; checksums verified"
            )
        if spec.targets in _WITHOUT_CLASSES:
            return "\n".join([*lines, f"targets: {spec.targets}"])
        lines.append("class".ljust(24) + "".join(name.rjust(10) for name in names))
        for number in range(spec.classes):
            label = self.manifest.class_names[number] if self.manifest.class_names else str(number)
            counts = [f"{split.classes[number]}".rjust(10) for split in self.splits.values()]
            lines.append(label[:23].ljust(24) + "".join(counts))
        return "\n".join(lines)


def inspect(directory: str) -> Inspection:
    """Read and decode every example.

    Raises:
        DataError: A file is missing or does not match the manifest, or an example can't be used.
    """
    data = data_set.open_data(directory)
    for file in data_set.stored_files(data):
        _check(data, file)
    return Inspection(data.manifest, {name: _look(data, name) for name in data.manifest.splits})


def _look(data: data_set.DataSet, name: str) -> SplitContent:
    """Read a whole split and sum it up. Raises DataError for an example that can't be used."""
    manifest, split = data.manifest, data.manifest.split(name)
    classes = np.zeros(manifest.spec.classes, np.int64)
    examples = 0
    sizes: list[npt.NDArray[np.int32]] = []
    try:
        for batch_sizes, labels in _sizes_and_labels(data, name):
            examples += len(batch_sizes)
            classes += _count(labels[0] if manifest.weighted else labels, manifest.spec)
            sizes.append(batch_sizes)
    except tf.errors.InvalidArgumentError as error:
        raise DataError(
            f"{data.directory}: split {name}: {describe(error)}; convert the dataset again"
        ) from error
    every, expected = np.concatenate(sizes), manifest.spec.shape[:2]
    if manifest.encoding == ENCODED and all(expected) and (every != expected).any():
        raise DataError(f"{data.directory}: split {name}: not all images have the size {expected}")
    return SplitContent(
        examples=examples,
        files=len(split.files),
        bytes=split.bytes,
        classes=tuple(classes.tolist()),
        smallest=tuple(every.min(axis=0).tolist()),
        largest=tuple(every.max(axis=0).tolist()),
        mean_length=round(float(every.mean()), 1) if manifest.spec.kind == "text" else 0.0,
    )


def _count(targets: Any, spec: specs.DataSpec) -> npt.NDArray[np.int64]:
    """Count the places of each class, or the examples with each label; nothing for numbers."""
    if spec.targets in _WITHOUT_CLASSES:
        return np.zeros(spec.classes, np.int64)
    if spec.targets == specs.LABELS:
        return np.asarray(targets.sum(axis=0), np.int64)
    return np.bincount(targets[targets >= 0].astype(np.int64), minlength=spec.classes)


def _sizes_and_labels(data: data_set.DataSet, split: str) -> Any:
    """Yield (count, 2) heights and widths, (count, 1) lengths or (count, 0), with the labels."""
    manifest = data.manifest

    def decoded_size(content: tf.Tensor) -> tf.Tensor:
        return tf.shape(preprocessing.decode(content, manifest.spec.shape[2]))[:2]

    def measure(serialised: tf.Tensor) -> tuple[tf.Tensor, Any]:
        features, labels = preprocessing.parse_examples(serialised, manifest)
        if manifest.encoding == ARRAY:
            return tf.zeros((tf.size(serialised), 0), tf.int32), labels
        if manifest.spec.kind == "text":
            real = features != manifest.spec.padding
            return tf.math.count_nonzero(real, axis=1, keepdims=True, dtype=tf.int32), labels
        if manifest.encoding == ENCODED:
            return tf.map_fn(decoded_size, features, fn_output_signature=tf.int32), labels
        return tf.tile([tf.shape(features)[1:3]], (tf.size(serialised), 1)), labels

    records = data.shards(split).read_all().batch(_MEASURED_AT_ONCE)
    return records.map(measure, num_parallel_calls=tf.data.AUTOTUNE).as_numpy_iterator()


def blame_data(
    data: data_set.DataSet, error: tf.errors.OpError, alive: Callable[[], None] = lambda: None
) -> None:
    """Raise DataError if `data` is why a step ended with `error`: a changed file, a function.

    Reads the file that the error names, or else all; calls `alive` before each.
    """
    if data.function:
        if told := function.explain(error, data.function.function.place):
            raise told from error
        return
    if not _is_of_data(error):
        return
    logger.error("data: %s; comparing the files with their checksums", describe(error))
    every = [file for file in data_set.stored_files(data) if file.bytes]
    for file in [file for file in every if file.name in error.message] or every:
        alive()
        _check(data, file)


def _check(data: data_set.DataSet, file: DataFile) -> None:
    """Raise DataError if the content of `file` is not what was written."""
    path = f"{data.directory}/{file.name}"
    if files.sha256(path) != file.sha256:
        raise DataError(
            f"{path}: its SHA-256 differs from the manifest's; copy the dataset there again"
        )


def _is_of_data(error: tf.errors.OpError) -> bool:
    """Return whether records can be the cause: a step that can't be compiled is no such case."""
    if isinstance(error, tf.errors.DataLossError):
        return True
    known = find_known_error(error.message)
    return (
        isinstance(error, tf.errors.InvalidArgumentError)
        and known is not None
        and known.id in _OF_DATA
        and not any(words in error.message for words in _OF_COMPILER)
    )
