"""Which records of a TFRecord file are whole.

A record is the length of its content (8 bytes, little-endian), the masked CRC-32C of the length,
the content, and its masked CRC-32C:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_LENGTH_BYTES, _CRC_BYTES = 8, 4


@dataclass(frozen=True)
class Scan:
    """Offset and length of the content of each whole record, and the offsets of the others.

    Where a length itself is corrupt, nothing behind it can be found: `lost` counts the records that
    should have come there, besides the one whose offset is in `corrupt`.
    """

    whole: tuple[tuple[int, int], ...]
    corrupt: tuple[int, ...]
    lost: int


def scan(content: bytes, examples: int) -> Scan:
    """Look through a file that should hold `examples` records."""
    places, end = _places(content)
    data = np.frombuffer(content, np.uint8)
    wanted = np.array([_number(content, o + n, _CRC_BYTES) for o, n in places], np.uint64)
    right = wanted == _masked(_crc32c(data, places)) if places else np.zeros(0, bool)
    whole = tuple(place for place, good in zip(places, right, strict=True) if good)
    head = _LENGTH_BYTES + _CRC_BYTES
    corrupt = [o - head for (o, _), good in zip(places, right, strict=True) if not good]
    if end < len(content) or len(places) < examples:
        corrupt.append(end)
    return Scan(whole, tuple(corrupt), max(0, examples - len(whole) - len(corrupt)))


def _places(content: bytes) -> tuple[list[tuple[int, int]], int]:
    """Where the contents are, as far as the lengths are whole, and where that ends."""
    places: list[tuple[int, int]] = []
    position = 0
    while position + _LENGTH_BYTES + _CRC_BYTES <= len(content):
        length = _number(content, position, _LENGTH_BYTES)
        crc = _number(content, position + _LENGTH_BYTES, _CRC_BYTES)
        field = np.frombuffer(content[position : position + _LENGTH_BYTES], np.uint8)
        start = position + _LENGTH_BYTES + _CRC_BYTES
        if crc != int(_masked(_crc32c(field, [(0, _LENGTH_BYTES)]))[0]):
            break
        if start + length + _CRC_BYTES > len(content):
            break
        places.append((start, length))
        position = start + length + _CRC_BYTES
    return places, position


def _number(content: bytes, start: int, size: int) -> int:
    return int.from_bytes(content[start : start + size], "little")


def _table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


_TABLE = _table()


def _crc32c(data: npt.NDArray[np.uint8], places: list[tuple[int, int]]) -> npt.NDArray[np.uint32]:
    """The CRC-32C of each place, byte by byte, but of all places at once."""
    starts = np.array([start for start, _ in places])
    lengths = np.array([length for _, length in places])
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[longest_first], lengths[longest_first]
    crc = np.full(len(places), 0xFFFFFFFF, np.uint32)
    for position in range(int(lengths[0])):
        count = int(np.searchsorted(-lengths, -position, side="left"))
        part = crc[:count]
        crc[:count] = _TABLE[(part ^ data[starts[:count] + position]) & 0xFF] ^ (part >> 8)
    ordered = np.empty_like(crc)
    ordered[longest_first] = crc ^ np.uint32(0xFFFFFFFF)
    return ordered


def _masked(crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """As TensorFlow stores it: rotated and shifted, so that a CRC of CRCs is not trivial."""
    wide = crc.astype(np.uint64)
    rotated = (wide >> np.uint64(15)) | (wide << np.uint64(17))
    result: npt.NDArray[np.uint64] = (rotated + np.uint64(_MASK_DELTA)) & np.uint64(0xFFFFFFFF)
    return result
