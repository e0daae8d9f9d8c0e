"""Reads the curves in a file of TensorBoard events without TensorFlow: only numbers, by their tags.

A file is a chain of records (TFRecord: length in 8 bytes, its check in 4, content, its check in 4),
each an Event of protocol buffers. The numbers of their fields are those of event.proto,
summary.proto and tensor.proto in https://github.com/tensorflow/tensorflow/tree/v2.19.0/tensorflow/core
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

Point: TypeAlias = "tuple[str, int, float]"
"""A tag, a step and a value."""

_HEAD, _CHECK = 12, 4
_FORMATS = {1: "<f", 2: "<d"}
"""How DT_FLOAT and DT_DOUBLE lie in a tensor's content."""
_SCHEMA = """
name: "events" syntax: "proto3"
message_type { name: "Event"
  field { name: "step" number: 2 type: TYPE_INT64 }
  field { name: "summary" number: 5 type: TYPE_MESSAGE type_name: "Summary" } }
message_type { name: "Summary"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Value" } }
message_type { name: "Value" oneof_decl { name: "value" }
  field { name: "tag" number: 1 type: TYPE_STRING }
  field { name: "simple_value" number: 2 type: TYPE_FLOAT oneof_index: 0 }
  field { name: "tensor" number: 8 type: TYPE_MESSAGE type_name: "Tensor" oneof_index: 0 } }
message_type { name: "Tensor"
  field { name: "dtype" number: 1 type: TYPE_INT32 }
  field { name: "tensor_content" number: 4 type: TYPE_BYTES }
  field { name: "float_val" number: 5 label: LABEL_REPEATED type: TYPE_FLOAT }
  field { name: "double_val" number: 6 label: LABEL_REPEATED type: TYPE_DOUBLE } }
"""
# A pool of its own: where TensorFlow is loaded, the common one has its messages.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
_Event = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("Event"))


def points(data: bytes) -> Iterator[Point]:
    """Yield every number in a file; what is half written, or no event, ends it."""
    begin = 0
    while begin + _HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, begin)
        end = begin + _HEAD + length
        if end + _CHECK > len(data):
            return
        try:
            event = _Event.FromString(data[begin + _HEAD : end])
        except DecodeError:
            return
        yield from _points(event)
        begin = end + _CHECK


def _points(event: Any) -> Iterator[Point]:
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        found = _scalar(value.tensor) if kind == "tensor" else kind and value.simple_value
        if value.tag and found is not None and math.isfinite(found):
            yield value.tag, event.step, found


def _scalar(tensor: Any) -> float | None:
    """Return the number in a tensor; None if it has none of a kind known here, or several."""
    values = [*tensor.float_val, *tensor.double_val]
    form = _FORMATS.get(tensor.dtype)
    if form and len(tensor.tensor_content) == struct.calcsize(form):
        values = [*struct.unpack(form, tensor.tensor_content)]
    return values[0] if form and len(values) == 1 else None
