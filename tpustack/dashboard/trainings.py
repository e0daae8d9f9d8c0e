"""Trainings as the page shows them: goodput and cost by day, and learning curves."""

import dataclasses
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple
from urllib.parse import quote

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from infra.cost import Estimate
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_core.google import Json
from tpu_training.goodput import account as accounts
from tpu_training.goodput.ledger import Ledger, read
from tpustack.cloud.google import Google
from tpustack.errors import UsageError
from tpustack.goodput import files_of, money_of

_DAY = 86400.0
# A job's training has its ledger in `jobs/NAME/model`, a stack's own in `jobs/NAME`.
_GLOB = f"{paths.JOBS}**/ledger/*.json"
# The trainings that are shown, those that changed last: a page with more is not read.
_MOST = 50


class Trainings:
    """The trainings of a bucket; a ledger that has not changed is not read again.

    Args:
        google: the APIs.
        bucket: without gs://.
        estimate: what the stack costs; None where that is not known.
    """

    def __init__(self, google: Google, bucket: str, estimate: Estimate | None) -> None:
        self._google, self._bucket, self._estimate = google, bucket, estimate
        self._known: dict[str, tuple[tuple[int, ...], Json]] = {}

    def read(self) -> list[Json]:
        """Return what is known of each training, the newest first. Raises TpustackError."""
        folders: dict[str, list[int]] = {}
        for file in matching(self._google, self._bucket, paths.JOBS, _GLOB):
            folders.setdefault(file.path.rpartition("/ledger/")[0], []).append(file.generation)
        newest = sorted(folders, key=lambda folder: -max(folders[folder]))[:_MOST]
        self._known = {folder: self._of(folder, tuple(folders[folder])) for folder in newest}
        return [found for _, found in self._known.values() if found]

    def _of(self, folder: str, generations: tuple[int, ...]) -> tuple[tuple[int, ...], Json]:
        known = self._known.get(folder)
        if known and known[0] == generations:
            return known
        ledger = read(files_of(f"gs://{self._bucket}/{folder}", self._google))
        found = training(folder, ledger, self._estimate) if ledger.entries else {}
        return generations, found


def training(folder: str, ledger: Ledger, estimate: Estimate | None) -> Json:
    """Return a training's goodput and cost, in all and by day.

    Args:
        folder: its place in the bucket.
        ledger: what it wrote; there is at least one start.
        estimate: what the stack costs; None where that is not known.
    """
    total = accounts.account(ledger)
    return {
        "folder": folder,
        "begin": ledger.entries[0].begin,
        "end": ledger.entries[-1].end,
        "ending": ledger.entries[-1].ending,
        "steps": total.steps,
        "lostSteps": total.lost_steps,
        "starts": total.starts,
        "causes": dict(total.causes),
        **_figures(total, estimate),
        "days": [
            {"day": day, **_figures(dataclasses.replace(total, seconds=seconds), estimate)}
            for day, seconds in by_day(accounts.timeline(ledger), total.seconds).items()
        ],
        "problems": ledger.problems,
    }


def by_day(
    segments: Sequence[accounts.Segment], states: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return the seconds of each state by day (UTC), the last day first."""
    days: dict[str, dict[str, float]] = {}
    for segment in segments:
        for day, share in _shares(segment.begin, segment.end):
            seconds = days.setdefault(day, dict.fromkeys(states, 0.0))
            for state, spent in segment.seconds.items():
                seconds[state] += spent * share
    return dict(sorted(days.items(), reverse=True))


def _shares(begin: float, end: float) -> Iterator[tuple[str, float]]:
    """Yield each day of a span, and the part of the span that is in it."""
    now = begin
    while now < end:
        after = min(end, (now // _DAY + 1) * _DAY)
        day = datetime.fromtimestamp(now, tz=timezone.utc).date().isoformat()
        yield day, (after - now) / (end - begin)
        now = after


def _figures(total: accounts.Account, estimate: Estimate | None) -> Json:
    money = money_of(total, estimate) if estimate else None
    return {
        "wall": total.wall,
        "goodput": total.goodput,
        "seconds": {state: spent for state, spent in total.seconds.items() if spent},
        "cost": money and f"{money.total:f}",
        "complete": money is None or money.complete,
    }


# --- Learning curves.

# What a training's folder in the bucket is called.
_FOLDER = re.compile(r"jobs/[^/\x00-\x1f]{1,200}(/model)?")
_MOST_POINTS = 300
# Of a training's files, which also hold pictures and graphs: all of it is read at each look.
_MOST_BYTES = 64 * 2**20
Curve = list[tuple[int, float]]
"""Steps and values."""


def curves(google: Google, bucket: str, folder: str) -> dict[str, Curve]:
    """Return the points of each curve in a training's folder, by tag.

    Where a killed training was started again, what the later start wrote for a step counts.

    Raises:
        UsageError: it is not a training's folder.
        TpustackError: the bucket refuses.
    """
    if not _FOLDER.fullmatch(folder):
        raise UsageError(f"{folder!r} is not a folder of a training. Write it like jobs/NAME")
    store = Bucket(bucket, google.exchange)
    series: dict[str, dict[int, float]] = {}
    for file in _event_files(google, bucket, folder):
        found = store.read(file.path)
        for tag, step, value in points(found[0] if found else b""):
            series.setdefault(tag, {})[step] = value
    return {tag: thinned(sorted(series[tag].items())) for tag in sorted(series)}


def thinned(curve: Sequence[tuple[int, float]], most: int = _MOST_POINTS) -> Curve:
    """Return at most `most` points, with the first, the last, and of each part lowest and highest.

    So no peak is lost, however many points there are.
    """
    if len(curve) <= most:
        return list(curve)
    parts = (most - 2) // 2
    kept = {0: curve[0], len(curve) - 1: curve[-1]}
    for part in range(parts):
        places = range(part * len(curve) // parts, (part + 1) * len(curve) // parts)
        for chosen in (min, max):
            place = chosen(places, key=lambda number: curve[number][1])
            kept[place] = curve[place]
    return [kept[place] for place in sorted(kept)]


def _event_files(google: Google, bucket: str, folder: str) -> list["Found"]:
    """Return the newest event files that are small enough together, the oldest of them first.

    They are in the training's folder, or in one for each split. Their names begin with the time at
    which they were begun.
    """
    prefix = f"{folder}/"
    # The folder's own characters must match themselves alone.
    literal = re.sub(r"([\\*?\[\]{}])", r"\\\1", prefix)
    found = list(matching(google, bucket, prefix, f"{literal}**events.out.tfevents.*"))
    kept: list[Found] = []
    left = _MOST_BYTES
    for file in sorted(found, key=lambda file: file.path.rpartition("/")[2], reverse=True):
        left -= file.size
        if left < 0:
            break
        kept.insert(0, file)
    return kept


# A file of TensorBoard events is a chain of records (TFRecord: length in 8 bytes, its check in 4,
# content, its check in 4), each an Event of protocol buffers, read here without TensorFlow. The
# numbers of their fields are those of event.proto, summary.proto and tensor.proto in
# https://github.com/tensorflow/tensorflow/tree/v2.19.0/tensorflow/core
_HEAD, _CHECK = 12, 4
# How a tensor's content encodes DT_FLOAT and DT_DOUBLE.
_FORMATS = {1: "<f", 2: "<d"}
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


def points(data: bytes) -> Iterator[tuple[str, int, float]]:
    """Yield tag, step and value of every number in a file.

    What is half written, or not an event, ends it.
    """
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
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            found = _scalar(value.tensor) if kind == "tensor" else kind and value.simple_value
            if value.tag and found is not None and math.isfinite(found):
                yield value.tag, event.step, found
        begin = end + _CHECK


def _scalar(tensor: Any) -> float | None:
    """Return the number in a tensor; None if it has none of a kind known here, or several."""
    values = [*tensor.float_val, *tensor.double_val]
    form = _FORMATS.get(tensor.dtype)
    if form and len(tensor.tensor_content) == struct.calcsize(form):
        values = [*struct.unpack(form, tensor.tensor_content)]
    return values[0] if form and len(values) == 1 else None


_LIST = "https://storage.googleapis.com/storage/v1/b/{}/o"
_FIELDS = "items(name,generation,size),nextPageToken"


class Found(NamedTuple):
    """An object's name, its generation and its size."""

    path: str
    generation: int
    size: int


def matching(google: Google, bucket: str, prefix: str, glob: str) -> Iterator[Found]:
    """Yield the objects below `prefix` that match a glob of Cloud Storage. Raises TpustackError."""
    query = {"prefix": prefix, "matchGlob": glob, "fields": _FIELDS}
    for item in google.pages(_LIST.format(quote(bucket, safe="")), "items", query):
        yield Found(item["name"], int(item["generation"]), int(item.get("size", 0)))
