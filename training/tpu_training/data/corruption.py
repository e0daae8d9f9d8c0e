"""Records that are no use: found by their checksums or by reading them, left out up to a limit."""

import dataclasses
import logging

import tensorflow as tf

from tpu_training.data.data_set import DataSet, corrupt_files
from tpu_training.data.manifest import ENCODED, Split
from tpu_training.data.preprocessing import ops
from tpu_training.data.preprocessing.parse import parse_examples
from tpu_training.data.records import Scan, scan
from tpu_training.errors import DataError

# Length and checksum before the content of a record.
_HEAD_BYTES = 12
_BATCH = 1024

logger = logging.getLogger(__name__)


def readable_part(data: DataSet, limit: int, error: tf.errors.OpError) -> DataSet:
    """Return `data` without the records that `error` may come from; `error` again if there is none.

    Raises DataError with the file and offset where there are more than `limit`.
    """
    if isinstance(error, (tf.errors.DataLossError, tf.errors.InvalidArgumentError)):
        part = without_corrupt_records(data, limit) or without_unreadable_records(data, limit)
        if part:
            return part
    raise error


def without_corrupt_records(data: DataSet, limit: int) -> DataSet | None:
    """Return `data` without its corrupt records; None when no file differs from its SHA-256.

    Raises DataError that names the file and the offset of the first record over `limit`, and when a
    file differs in whole records: then it is another file, not a damaged one.
    """
    changed = [name for name in corrupt_files(data) if name not in data.damaged]
    found: dict[str, Scan] = {}
    for split in data.manifest.splits.values():
        for file in split.files:
            if file.name in changed:
                found[file.name] = _scan(data, file.name, file.examples)
                if not found[file.name].corrupt:
                    raise DataError(
                        f"{data.directory}/{file.name}: its SHA-256 is not the manifest's, though "
                        "each of its records is whole; copy the data set there again"
                    )
    return _without(data, found, limit, "") if found else None


def without_unreadable_records(data: DataSet, limit: int) -> DataSet | None:
    """Return `data` without the records that are whole and still no use; None when all are fine.

    Such are an image that can't be decoded or has another size than the manifest says, a label out
    of range, an example without image. All records are read; raises DataError as for corrupt ones.
    """
    found: dict[str, Scan] = {}
    reason = ""
    for split_name, split in data.manifest.splits.items():
        for number, file in enumerate(split.files):
            records = data.shards(split_name).read(tf.constant(number))
            good = _readable(records, data)
            if len(good) == file.examples:
                continue
            places = data.damaged.get(file.name) or _scan(data, file.name, file.examples).whole
            bad = [place for n, place in enumerate(places) if n not in good]
            whole = tuple(place for n, place in enumerate(places) if n in good)
            found[file.name] = Scan(whole, tuple(start - _HEAD_BYTES for start, _ in bad), 0)
            reason = reason or _why(records, min(set(range(len(places))) - good), data)
    return _without(data, found, limit, reason) if found else None


def _without(data: DataSet, found: dict[str, Scan], limit: int, reason: str) -> DataSet:
    """`data` without what `found` calls corrupt in some of its files."""
    damaged = dict(data.damaged)
    splits: dict[str, Split] = {}
    left_out = data.left_out
    for split_name, split in data.manifest.splits.items():
        counted = []
        for file in split.files:
            examples = file.examples
            if file.name in found:
                here = found[file.name]
                _check(data, file.name, here, limit, limit - left_out, reason)
                left_out += len(here.corrupt) + here.lost
                damaged[file.name] = here.whole
                examples = len(here.whole)
                logger.warning(
                    "data: left out %d corrupt records of %s at offset %s (--skip_corrupt_records="
                    "%d)",
                    len(here.corrupt) + here.lost,
                    file.name,
                    ", ".join(map(str, here.corrupt[:10])),
                    limit,
                )
            counted.append(dataclasses.replace(file, examples=examples))
        splits[split_name] = Split(sum(file.examples for file in counted), tuple(counted))
    manifest = dataclasses.replace(data.manifest, splits=splits)
    return DataSet(data.directory, manifest, damaged, left_out)


def _scan(data: DataSet, name: str, examples: int) -> Scan:
    with tf.io.gfile.GFile(f"{data.directory}/{name}", "rb") as file:
        return scan(file.read(), examples)


def _check(data: DataSet, name: str, found: Scan, limit: int, left: int, reason: str) -> None:
    count = len(found.corrupt) + found.lost
    if count > left:
        first = found.corrupt[min(max(left, 0), len(found.corrupt) - 1)]
        cure = "write the data set again" if reason else "copy the data set there again"
        raise DataError(
            f"{data.directory}/{name}: corrupt record at offset {first} ({count} in this file"
            f"{reason and f'; {reason}'}), more than --skip_corrupt_records={limit} allows; {cure}"
        )


def _readable(records: tf.data.Dataset, data: DataSet) -> set[int]:
    """The numbers of the records that can be used."""

    def read(number: tf.Tensor, serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return number, _use(serialised, data)

    tried = records.enumerate().map(read, num_parallel_calls=tf.data.AUTOTUNE).ignore_errors()
    numbers: set[int] = set()
    for batch, _ in tried.batch(_BATCH).as_numpy_iterator():
        numbers.update(batch.tolist())
    return numbers


def _use(serialised: tf.Tensor, data: DataSet) -> tf.Tensor:
    """A number for which the example must be parsed and its image decoded."""
    features, labels = parse_examples(serialised[tf.newaxis], data.manifest)
    if data.manifest.encoding != ENCODED:
        return labels[0]
    shape = data.manifest.spec.shape
    image = ops.decode(features[0], shape[2])
    image = tf.ensure_shape(image, [size or None for size in shape])
    return labels[0] + tf.cast(tf.reduce_max(image), tf.int32)


def _why(records: tf.data.Dataset, number: int, data: DataSet) -> str:
    """What TensorFlow says of a record that can't be used, without its own names around it."""
    (serialised,) = records.skip(number).take(1)
    try:
        _use(serialised, data)
    except (tf.errors.OpError, ValueError) as error:
        text = str(getattr(error, "message", error)).rpartition("}} ")[2]
        text = text.rpartition("Summarized data: ")[2].partition(" [Op:")[0].strip(" .")
        return text.removeprefix("b'").removesuffix("'")
    return ""
