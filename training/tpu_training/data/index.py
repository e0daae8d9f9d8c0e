"""The index of a split: the length of each of its records, in the order of its files.

With it a record is found without reading those before it. Each length is 4 bytes, little-endian.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tpu_training.data import files
from tpu_training.data.data_set import DataSet
from tpu_training.data.records import RECORD_BYTES
from tpu_training.errors import DataError

INDEX_SUFFIX = ".index"
_LENGTH = np.dtype("<u4")


def encode_lengths(lengths: Iterable[int]) -> bytes:
    """Return the part of an index for a file with records of these lengths."""
    return np.fromiter(lengths, _LENGTH).tobytes()


def read_offsets(data: DataSet, split: str) -> list[npt.NDArray[np.int64]] | None:
    """Return the offsets of the records in each file of `split`, and of its end.

    None if the data set has no index, as one that an earlier release converted.

    Raises:
        DataError: It is not the manifest's, or does not fit the files.
    """
    content = data.manifest.split(split)
    if content.index is None:
        return None
    path = f"{data.directory}/{content.index.name}"
    stored = files.read_bytes(path)
    if hashlib.sha256(stored).hexdigest() != content.index.sha256:
        raise DataError(f"{path}: is not the manifest's; copy the data set there again")
    lengths = np.frombuffer(stored, _LENGTH).astype(np.int64)
    begins = np.concatenate([[0], np.cumsum(lengths + RECORD_BYTES)])
    at, offsets = 0, []
    for file in content.files:
        # A file ends where its size says, as damaged ones have lost count of their records.
        end = int(np.searchsorted(begins, begins[at] + file.bytes))
        if end == len(begins) or begins[end] != begins[at] + file.bytes:
            raise DataError(
                f"{path}: does not fit {file.name} of {file.bytes} bytes; copy the data set there "
                "again"
            )
        offsets.append(begins[at : end + 1] - begins[at])
        at = end
    return offsets
