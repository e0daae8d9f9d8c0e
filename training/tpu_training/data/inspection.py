"""What a data set holds, and which of its records can't be used.

`data inspect` reads everything and sums it up. A training that meets a record that it can't read
looks for all of them: first by the files' checksums, then by using each record as a step would.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data import files, preprocessing
from tpu_training.data.data_set import DataSet, belongs, open_data, stored_files
from tpu_training.data.function import explain
from tpu_training.data.manifest import ENCODED, DataFile, Manifest, Split
from tpu_training.errors import DataError
from tpu_training.errors.catalog import describe, find_known_error
from tpu_training.models import spec as specs

_MEASURED_AT_ONCE, _READ_AT_ONCE = 512, 1024
# Entries of the catalog of errors, and what the errors of a TPU's compiler say.
_OF_DATA = ("corrupt-data", "label-out-of-range")
_OF_COMPILER = ("Compilation failure", "TPUReplicate")
_LENGTH_BYTES, _CRC_BYTES = 8, 4
HEAD_BYTES = _LENGTH_BYTES + _CRC_BYTES

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """Offset, length and number of the content of each whole record; the others' offsets.

    Where a length itself is corrupt, nothing behind it can be found: `lost` counts the records that
    should have come there, besides the one whose offset is in `corrupt`.
    """

    whole: tuple[tuple[int, int, int], ...]
    corrupt: tuple[int, ...]
    lost: int

    @property
    def useless(self) -> int:
        """How many records are corrupt or lost."""
        return len(self.corrupt) + self.lost


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

    def sizes(self) -> str:
        """Say how large the examples are."""
        low, high = ("x".join(map(str, size)) for size in (self.smallest, self.largest))
        if self.mean_length:
            return f"{low} to {high} token ids, {self.mean_length:g} on average"
        return f"size {low}" if low == high else f"sizes from {low} to {high}"


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
                f"{split.bytes / 2**20:.1f} MiB, {split.sizes()}; checksums verified"
            )
        if spec.targets in (specs.NUMBERS, specs.NOTHING):
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
        DataError: A file is missing or does not match the manifest.
    """
    data = open_data(directory)
    without_corrupt_records(data, limit=0)
    if data.manifest.encoding == ENCODED:
        without_unreadable_records(data, limit=0)  # Sizes are read without the pixels.
    try:
        return Inspection(data.manifest, {name: _look(data, name) for name in data.manifest.splits})
    except tf.errors.InvalidArgumentError as error:
        readable_part(data, 0, error)
        raise


def _look(data: DataSet, name: str) -> SplitContent:
    manifest, split = data.manifest, data.manifest.split(name)
    classes = np.zeros(manifest.spec.classes, np.int64)
    examples = 0
    sizes: list[npt.NDArray[np.int32]] = []
    for batch_sizes, labels in _sizes_and_labels(data, name):
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


def _count(targets: npt.NDArray[Any], spec: specs.DataSpec) -> npt.NDArray[np.int64]:
    if spec.targets in (specs.NUMBERS, specs.NOTHING):
        return np.zeros(spec.classes, np.int64)
    if spec.targets == specs.LABELS:
        return np.asarray(targets.sum(axis=0), np.int64)
    return np.bincount(targets[targets >= 0].astype(np.int64), minlength=spec.classes)


def _sizes_and_labels(data: DataSet, split: str) -> Any:
    """Yield (count, 2) heights and widths, or (count, 1) lengths, with the labels."""
    manifest = data.manifest

    def measure(serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features, labels = preprocessing.parse_examples(serialised, manifest)
        if manifest.spec.kind == "text":
            return tf.math.count_nonzero(features, axis=1, keepdims=True, dtype=tf.int32), labels
        if manifest.encoding == ENCODED:
            sizes = tf.map_fn(preprocessing.image_size, features, fn_output_signature=tf.int32)
            return sizes, labels
        return tf.tile([tf.shape(features)[1:3]], (tf.shape(labels)[0], 1)), labels

    records = data.shards(split).read_all().batch(_MEASURED_AT_ONCE)
    return records.map(measure, num_parallel_calls=tf.data.AUTOTUNE).as_numpy_iterator()


# Corrupt and unreadable records: found by checksum or by reading them, skipped up to a limit.


def readable_part(
    data: DataSet, limit: int, error: tf.errors.OpError, alive: Callable[[], None] = lambda: None
) -> DataSet:
    """Return `data` without the records that may have caused `error`; else raise `error`.

    Looks through the file that the error names, or through all; calls `alive` before each.

    Raises DataError with the file and offset where there are more than `limit`.
    """
    if data.function:
        raise explain(error, data.function.function.place) or error
    if not _is_of_data(error):
        raise error
    logger.error("data: %s; looking for unusable records", describe(error))
    named = [file for file in stored_files(data) if file.name in error.message]

    def looked_at() -> Iterator[DataFile]:
        for file in named or stored_files(data):
            alive()
            yield file

    part = without_corrupt_records(data, limit, looked_at())
    part = part or without_unreadable_records(data, limit, looked_at())
    if part:
        return part
    raise error


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


def without_corrupt_records(
    data: DataSet, limit: int, among: Iterable[DataFile] | None = None
) -> DataSet | None:
    """Return `data` without its corrupt records; None when no file differs from its SHA-256.

    Raises DataError that names the file and the offset of the first record over `limit`, and when a
    file differs in whole records: then it is another file, not a damaged one.
    """
    found = {
        file.name: _scan_file(data, file)
        for file in among or stored_files(data)
        if file.name not in data.damaged
        and files.sha256(f"{data.directory}/{file.name}") != file.sha256
    }
    for name, scanned in found.items():
        if not scanned.corrupt:
            raise DataError(
                f"{data.directory}/{name}: its SHA-256 is not the manifest's, though each of its "
                "records is whole; copy the data set there again"
            )
    return _without(data, found, limit, "") if found else None


def without_unreadable_records(
    data: DataSet, limit: int, among: Iterable[DataFile] | None = None
) -> DataSet | None:
    """Return `data` without whole but unusable records; None when all are fine.

    For example an image that can't be decoded or has another size than in the manifest, a label out
    of range, an example without image. All records are read; raises DataError as for corrupt ones.
    """
    found: dict[str, Scan] = {}
    reason = ""
    for file in among or stored_files(data):
        records = data.read_file(file.name)
        good = _readable(records, data)
        if len(good) == file.examples:
            continue
        places = data.damaged.get(file.name) or _scan_file(data, file).whole
        bad = [place for n, place in enumerate(places) if n not in good]
        whole = tuple(place for n, place in enumerate(places) if n in good)
        found[file.name] = Scan(whole, tuple(start - HEAD_BYTES for start, *_ in bad), 0)
        reason = reason or _why(records, min(set(range(len(places))) - good), data)
    return _without(data, found, limit, reason) if found else None


def _without(data: DataSet, found: dict[str, Scan], limit: int, reason: str) -> DataSet:
    """Return `data` without what `found` calls corrupt in some of its files."""
    left_out = data.left_out
    for name, scanned in found.items():
        _check(f"{data.directory}/{name}", scanned, limit, limit - left_out, reason)
        left_out += scanned.useless
        logger.warning(
            "data: left out %d corrupt records of %s at offset %s (--skip_corrupt_records=%d)",
            scanned.useless,
            name,
            ", ".join(map(str, scanned.corrupt[:10])),
            limit,
        )
    damaged = {**data.damaged, **{name: scanned.whole for name, scanned in found.items()}}
    part = dataclasses.replace(data, damaged=damaged, left_out=left_out)
    splits = {name: _recount(part, name) for name in data.manifest.splits}
    return dataclasses.replace(part, manifest=dataclasses.replace(data.manifest, splits=splits))


def _recount(data: DataSet, name: str) -> Split:
    """Return the split called `name` with as many examples as are left of its damaged files."""
    recounted = []
    split = data.manifest.split(name)
    for file in split.files:
        places = belongs(data, name, file.name, data.damaged.get(file.name, ()))
        count = len(places) if file.name in data.damaged else file.examples
        recounted.append(dataclasses.replace(file, examples=count))
    examples = sum(file.examples for file in recounted)
    return dataclasses.replace(split, examples=examples, files=tuple(recounted))


def _scan_file(data: DataSet, file: DataFile) -> Scan:
    return scan(files.read_bytes(f"{data.directory}/{file.name}"), file.examples)


def _check(path: str, found: Scan, limit: int, left: int, reason: str) -> None:
    if found.useless > left:
        first = found.corrupt[min(max(left, 0), len(found.corrupt) - 1)]
        cure = "write the data set again" if reason else "copy the data set there again"
        raise DataError(
            f"{path}: corrupt record at offset {first} ({found.useless} in this file"
            f"{reason and f'; {reason}'}), more than --skip_corrupt_records={limit} allows; {cure}"
        )


def _readable(records: tf.data.Dataset, data: DataSet) -> set[int]:
    """Return the numbers of the records that can be used."""

    def read(number: tf.Tensor, serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return number, _use(serialised, data)

    tried = records.enumerate().map(read, num_parallel_calls=tf.data.AUTOTUNE).ignore_errors()
    numbers: set[int] = set()
    for batch, _ in tried.batch(_READ_AT_ONCE).as_numpy_iterator():
        numbers.update(batch.tolist())
    return numbers


def _use(serialised: tf.Tensor, data: DataSet) -> tf.Tensor:
    """Return a number for which the example must be parsed and its image decoded."""
    features, labels = preprocessing.parse_examples(serialised[tf.newaxis], data.manifest)
    if data.manifest.encoding != ENCODED:
        return labels[0]
    shape = data.manifest.spec.shape
    image = preprocessing.decode(features[0], shape[2])
    image = tf.ensure_shape(image, [size or None for size in shape])
    return labels[0] + tf.cast(tf.reduce_max(image), tf.int32)


def _why(records: tf.data.Dataset, number: int, data: DataSet) -> str:
    """Return what TensorFlow says of a bad record, without its own names around it."""
    (serialised,) = records.skip(number).take(1)
    try:
        _use(serialised, data)
    except (tf.errors.OpError, ValueError) as error:
        text = str(getattr(error, "message", error)).rpartition("}} ")[2]
        text = text.rpartition("Summarized data: ")[2].partition(" [Op:")[0].strip(" .")
        return text.removeprefix("b'").removesuffix("'")
    return ""


# A record is the length of its content (8 bytes, little-endian), the masked CRC-32C of the length,
# the content, and its masked CRC-32C:
# https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details TensorFlow's
# reader stops at a corrupt one; its writer gives the checksums to compare with.


def scan(content: bytes, examples: int) -> Scan:
    """Look through a file that should hold `examples` records."""
    places = list(_places(content))
    right = _written_again(content, places)
    whole: list[tuple[int, int, int]] = []
    corrupt: list[int] = []
    end = 0
    for number, (start, length) in enumerate(places):
        if right[end:start] != content[end:start]:
            break
        stop = start + length
        end = stop + _CRC_BYTES
        if right[stop:end] == content[stop:end]:
            whole.append((start, length, number))
        else:
            corrupt.append(start - HEAD_BYTES)
    if end < len(content) or len(whole) + len(corrupt) < examples:
        corrupt.append(end)
    return Scan(tuple(whole), tuple(corrupt), max(0, examples - len(whole) - len(corrupt)))


def _places(content: bytes) -> Iterator[tuple[int, int]]:
    """Offset and length of each content, if all lengths are right."""
    start = HEAD_BYTES
    while start + _CRC_BYTES <= len(content):
        length = int.from_bytes(content[start - HEAD_BYTES : start - _CRC_BYTES], "little")
        if start + length + _CRC_BYTES > len(content):
            return
        yield start, length
        start += length + _CRC_BYTES + HEAD_BYTES


def _written_again(content: bytes, places: list[tuple[int, int]]) -> bytes:
    """Return the file as TensorFlow writes these contents, with the right checksums."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "records")
        with tf.io.TFRecordWriter(str(path)) as writer:
            for start, length in places:
                writer.write(content[start : start + length])
        return path.read_bytes()
