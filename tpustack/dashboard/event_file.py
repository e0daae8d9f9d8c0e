"""Reads the curves in a file of TensorBoard events without TensorFlow: only numbers, by their tags.

A file is a chain of records (TFRecord: length in 8 bytes, its check in 4, content, its check in 4),
each a message of protocol buffers. The numbers of their fields are those of event.proto,
summary.proto and tensor.proto in https://github.com/tensorflow/tensorflow/tree/v2.19.0/tensorflow/core
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import TypeAlias

Field: TypeAlias = "tuple[int, int | bytes]"
Point: TypeAlias = "tuple[str, int, float]"
"""A tag, a step and a value."""

_HEAD, _CHECK = 12, 4
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_STEP, _SUMMARY, _VALUE = 2, 5, 1
_TAG, _SIMPLE, _TENSOR = 1, 2, 8
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
_FORMATS = {1: "<f", 2: "<d"}
"""How DT_FLOAT and DT_DOUBLE lie in a tensor's content."""


def points(data: bytes) -> Iterator[Point]:
    """Yield every number in a file; what is half written, or no event, ends it."""
    try:
        for record in _records(data):
            yield from _points(record)
    except (ValueError, IndexError, struct.error):
        return


def _records(data: bytes) -> Iterator[bytes]:
    begin = 0
    while begin + _HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, begin)
        end = begin + _HEAD + length
        if end + _CHECK > len(data):
            return
        yield data[begin + _HEAD : end]
        begin = end + _CHECK


def _points(record: bytes) -> Iterator[Point]:
    step, summaries = 0, list[bytes]()
    for number, value in _fields(record):
        if number == _STEP and isinstance(value, int):
            step = value
        elif number == _SUMMARY and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == _VALUE and isinstance(value, bytes):
                yield from _of_value(step, value)


def _of_value(step: int, message: bytes) -> Iterator[Point]:
    tag, found = "", None
    for number, value in _fields(message):
        if number == _TAG and isinstance(value, bytes):
            tag = value.decode(errors="replace")
        elif number == _SIMPLE and isinstance(value, bytes):
            found = struct.unpack("<f", value)[0]
        elif number == _TENSOR and isinstance(value, bytes):
            found = _scalar(value)
    if tag and found is not None and math.isfinite(found):
        yield tag, step, found


def _scalar(tensor: bytes) -> float | None:
    """Return the number in a tensor; None if it has none of a kind known here, or several."""
    dtype, packed = 0, b""
    for number, value in _fields(tensor):
        if number == _DTYPE and isinstance(value, int):
            dtype = value
        elif number in (_CONTENT, _FLOATS, _DOUBLES) and isinstance(value, bytes):
            packed = value
    form = _FORMATS.get(dtype)
    if form is None or len(packed) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, packed)[0])


def _fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message. Raises ValueError for what is none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        length = {_DOUBLE: 8, _FLOAT: 4}.get(kind)
        if kind == _BYTES:
            length, at = _varint(message, at)
        if length is None or at + length > len(message):
            raise ValueError("no message of protocol buffers")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("no number of protocol buffers")
