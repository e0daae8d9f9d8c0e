"""Corrupt records: found by their checksums, left out up to a limit."""

import dataclasses
import logging

import tensorflow as tf

from training.data.manifest import Split
from training.data.records import Scan, scan
from training.data_set import DataSet, corrupt_files
from training.errors import DataError

logger = logging.getLogger(__name__)


def without_corrupt_records(data: DataSet, limit: int) -> DataSet | None:
    """Return `data` without its corrupt records; None when no file differs from its SHA-256.

    Raises DataError that names the file and the offset of the first record over `limit`, and when a
    file differs in whole records: then it is another file, not a damaged one.
    """
    changed = [name for name in corrupt_files(data) if name not in data.damaged]
    if not changed:
        return None
    damaged = dict(data.damaged)
    splits: dict[str, Split] = {}
    left = limit
    for split_name, split in data.manifest.splits.items():
        counted = []
        for file in split.files:
            examples = file.examples
            if file.name in changed:
                found = _scan(data, file.name, examples)
                _check(data, file.name, found, limit, left)
                left -= len(found.corrupt) + found.lost
                damaged[file.name] = found.whole
                examples = len(found.whole)
                logger.warning(
                    "data: left out %d corrupt records of %s at offset %s (--skip_corrupt_records="
                    "%d)",
                    len(found.corrupt) + found.lost,
                    file.name,
                    ", ".join(map(str, found.corrupt[:10])),
                    limit,
                )
            counted.append(dataclasses.replace(file, examples=examples))
        splits[split_name] = Split(sum(file.examples for file in counted), tuple(counted))
    manifest = dataclasses.replace(data.manifest, splits=splits)
    return DataSet(data.directory, manifest, damaged)


def _scan(data: DataSet, name: str, examples: int) -> Scan:
    with tf.io.gfile.GFile(f"{data.directory}/{name}", "rb") as file:
        return scan(file.read(), examples)


def _check(data: DataSet, name: str, found: Scan, limit: int, left: int) -> None:
    path = f"{data.directory}/{name}"
    if not found.corrupt:
        raise DataError(
            f"{path}: its SHA-256 is not the manifest's, though each of its records is whole; copy "
            "the data set there again"
        )
    count = len(found.corrupt) + found.lost
    if count > left:
        first = found.corrupt[min(max(left, 0), len(found.corrupt) - 1)]
        raise DataError(
            f"{path}: corrupt record at offset {first} ({count} in this file), more than "
            f"--skip_corrupt_records={limit} allows; copy the data set there again"
        )
