"""Which records of a TFRecord file are whole.

A record is the length of its content (8 bytes, little-endian), the masked CRC-32C of the length,
the content, and its masked CRC-32C:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
TensorFlow's reader can't go on after a corrupt one; its writer gives the checksums to compare with.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import tensorflow as tf

_LENGTH_BYTES, _CRC_BYTES = 8, 4
HEAD_BYTES = _LENGTH_BYTES + _CRC_BYTES


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
