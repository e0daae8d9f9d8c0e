"""What the page shows: stacks, TPUs, jobs and trainings of the places that it looks into.

Each is a `Source`, read as often as its answer may change and its calls are worth their price.
"""

import dataclasses
import json
import math
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from tpu_agent.jobs.queue import Queue
from tpu_core import lease, paths
from tpu_core.bucket import Bucket
from tpu_core.google import Json
from tpu_core.ledger import Entry, Ledger, read
from tpu_infra.catalog import Catalog
from tpu_infra.cost import Estimate, of_stack
from tpu_infra.names import names_of
from tpu_infra.settings import StackSettings
from tpu_training.goodput import account as accounts
from tpustack import console, errors, goodput, stacks
from tpustack.cloud.google import Google, Nodes
from tpustack.jobs.job import job_rows
from tpustack.jobs.queue import RUNNERS, bucket_of, explained, queue_of

# Why nothing of a place can be read, where that is a state of it and no failure.
_KINDS = {errors.Missing: "missing", errors.Denied: "denied"}
# Seconds between two reads of each.
_JOBS, _TPUS, _TRAININGS, _STACKS = 2.0, 3.0, 30.0, 300.0
# Fifty places must not mean fifty questions every two seconds.
_SECONDS_A_PLACE = 0.2
Zone = tuple[str, str]
"""A project and a zone."""


@dataclass(frozen=True)
class Place:
    """A bucket, and the stack that has it where that is known.

    Attributes:
        name: the stack's, or else the bucket's.
        bucket: without gs://; empty where the stack's file is wrong.
        settings: the stack's.
        problem: what is wrong with the stack's file.
    """

    name: str
    bucket: str
    settings: StackSettings | None = None
    problem: str = ""

    def queue(self, google: Google, say: Callable[[str], None] = lambda _: None) -> Queue:
        """Return its jobs. `say` hears of damaged records, which are left out."""
        return queue_of(self.bucket, google, say)


def places(named: Sequence[str], buckets: Sequence[str]) -> list[Place]:
    """Return the places with these names; all stacks of the project if there are none.

    Raises:
        UsageError: with everything that is wrong with the names.
    """
    problems: list[str] = []

    def of_named(stack: str) -> Place:
        stacks.require_file(stack)
        return _of_stack(stack)

    def each(names: Iterable[str], make: Callable[[str], Place]) -> Iterator[Place]:
        for name in names:
            try:
                yield make(name)
            except errors.UsageError as error:
                problems.append(str(error))

    found = list(each(buckets, lambda url: Place(bucket_of(url), bucket_of(url))))
    if named:
        found += each(named, of_named)
    elif not buckets:
        found += each(stacks.all_stacks(), _of_stack)
    if problems:
        raise errors.UsageError("\n".join(problems))
    return list({place.name: place for place in found}.values())


def _of_stack(stack: str) -> Place:
    """Return a stack's place; one wrong file must not hide all other stacks."""
    try:
        settings = stacks.load(stack)
    except errors.UsageError as error:
        return Place(stack, "", problem=str(error))
    return Place(stack, names_of(settings, stack).bucket, settings)


@dataclass(frozen=True)
class Source:
    """Something that the page shows a part of.

    Attributes:
        topic: the part.
        place: whose; empty for all.
        every: seconds between two reads.
        read: returns what there is now, and raises TpustackError.
    """

    topic: str
    place: str
    every: float
    read: Callable[[], list[Json]]

    def message(self) -> Json:
        """Return what there is now, or why that can't be told."""
        about: Json = {"topic": self.topic, "place": self.place}
        try:
            data = self.read()
            json.dumps(data, allow_nan=False)  # Pages read no NaN.
            return {**about, "data": data, "problem": ""}
        except errors.TpustackError as error:
            problem = str(error)
            if kind := _KINDS.get(type(error)):
                about["kind"] = kind
        except Exception as error:
            # Others wrote what it reads. The other parts stay, and the next read tries again.
            problem = f"it can't be shown ({type(error).__name__}: {error})"
        return {**about, "data": [], "problem": problem}


def sources(places: Sequence[Place], google: Google) -> list[Source]:
    """Return all that is followed, in the order in which a reader wants it."""
    catalog = Catalog()
    slow = max(1.0, len(places) * _SECONDS_A_PLACE / _JOBS)
    found = [Source("stacks", "", _STACKS, lambda: [stack(place, catalog) for place in places])]
    found += [
        Source("tpus", "/".join(zone), _TPUS * slow, partial(tpus_of_zone, google, zone, wanted))
        for zone, wanted in _tpus_by_zone(places).items()
    ]
    for place in places:
        if place.bucket:
            found += _of_bucket(place, google, catalog, slow)
    return found


def _of_bucket(place: Place, google: Google, catalog: Catalog, slow: float) -> Iterator[Source]:
    queue = place.queue(google, console.say)

    def jobs() -> list[Json]:
        with explained(queue):
            return job_rows(queue.summaries())

    def tpus() -> list[Json]:
        """Return the TPUs on which machines run jobs, as their leases say."""
        with explained(queue):
            return [
                {
                    "name": item.path.removeprefix(RUNNERS).removesuffix(".json"),
                    "state": "IN USE" if item.age <= lease.DURATION else "NO MACHINE",
                    "seen": item.age,
                }
                for item in queue.store.items(RUNNERS)
            ]

    yield Source("jobs", place.name, _JOBS * slow, jobs)
    if place.settings is None:
        yield Source("tpus", place.name, _TPUS * slow, tpus)
    estimate = of_stack(place.settings, place.name, catalog) if place.settings else None
    trainings = Trainings(google, place.bucket, estimate)
    yield Source("trainings", place.name, _TRAININGS * slow, trainings.read)


def stack(place: Place, catalog: Catalog) -> Json:
    """Return what is known of a place without asking any cloud or engine."""
    settings = place.settings
    about = {"name": place.name, "bucket": place.bucket, "problem": place.problem}
    if settings is None:
        return {**about, "isStack": bool(place.problem)}
    hour = of_stack(settings, place.name, catalog).configured
    return {
        **about,
        "isStack": True,
        "project": settings.project,
        "zone": settings.zone,
        "tpu": settings.tpu.accelerator_type,
        "capacity": settings.tpu.capacity.value,
        "hour": f"{hour.hour:f}",
        "complete": hour.complete,
    }


def drift(place: Place) -> Json:
    """Compare a stack's state with the cloud by the engine, which writes neither.

    Raises:
        UsageError: the place is not a stack.
        TpustackError: there is no engine, or the backend can't be read.
    """
    # The engine's library takes a second to load, and most pages never ask for this.
    from tpustack.ci.drift import drift as compare
    from tpustack.ci.result import Run
    from tpustack.engine.backend import users_own

    if place.settings is None:
        raise errors.UsageError(f"{place.name} is a bucket, not a stack: only a stack has a state")
    backend = users_own()
    with tempfile.TemporaryDirectory() as folder:
        job = Run(backend, backend.root, Path(folder), lambda _: None)
        (result,) = compare(job, [place.name])
    return result.as_json()


def _tpus_by_zone(places: Iterable[Place]) -> dict[Zone, dict[str, Place]]:
    """Return the names of the TPUs that stacks should have, and whose they are."""
    zones: dict[Zone, dict[str, Place]] = {}
    for place in places:
        if settings := place.settings:
            wanted = zones.setdefault((settings.project, settings.zone), {})
            names = names_of(settings, place.name).tpus(settings.tpu.slices)
            wanted.update(dict.fromkeys(names, place))
    return zones


def tpus_of_zone(google: Google, zone: Zone, wanted: Mapping[str, Place]) -> list[Json]:
    """Return the TPUs of a zone that stacks should have. Raises TpustackError."""
    forms = [Nodes(google, zone[0], compute=compute) for compute in (False, True)]
    return [_row(name, place, forms) for name, place in sorted(wanted.items())]


def _row(name: str, place: Place, forms: Sequence[Nodes]) -> Json:
    settings = place.settings
    assert settings is not None, "only stacks have TPUs"
    # The agent may have moved it to another of the stack's zones.
    found = forms[settings.is_compute].find(settings.tpu_zones, name)
    zone, node = found or (settings.zone, {"state": "ABSENT"})
    return {
        "name": name,
        "place": place.name,
        "zone": zone,
        "state": node.get("state", ""),
        "type": node.get("acceleratorType", ""),
        "created": node.get("createTime"),
        "health": node.get("health", ""),
        "said": node.get("healthDescription", ""),
    }


# --- Trainings: goodput and cost by day.

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
        for item in _matching(self._google, self._bucket, paths.JOBS, _GLOB):
            folder = item["name"].rpartition("/ledger/")[0]
            folders.setdefault(folder, []).append(int(item["generation"]))
        newest = sorted(folders, key=lambda folder: -max(folders[folder]))[:_MOST]
        # Only what is shown is kept: a page may be open for days.
        self._known = {folder: self._of(folder, tuple(folders[folder])) for folder in newest}
        return [found for _, found in self._known.values() if found]

    def _of(self, folder: str, generations: tuple[int, ...]) -> tuple[tuple[int, ...], Json]:
        known = self._known.get(folder)
        if known and known[0] == generations:
            return known
        ledger = read(goodput.files_of(f"gs://{self._bucket}/{folder}", self._google))
        found = training(folder, ledger, self._estimate) if ledger.entries else {}
        return generations, found


def training(folder: str, ledger: Ledger, estimate: Estimate | None) -> Json:
    """Return a training's goodput and cost, in all and by day.

    Args:
        folder: its place in the bucket.
        ledger: what it wrote; there is at least one start.
        estimate: what the stack costs; None where that is not known.
    """
    total, last = accounts.account(ledger), ledger.entries[-1]
    return {
        "folder": folder,
        "begin": ledger.entries[0].begin,
        "end": last.end,
        "ending": last.ending,
        "inputWait": _input_wait(last),
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


def _input_wait(start: Entry) -> float | None:
    """Return the part of a start's loops that waited for input; None where no one measured it."""
    # A loop that is not the trainer's counts input as part of its steps.
    waited = start.seconds["input"]
    loops = sum(start.seconds[part] for part in ("compute", "input", "checkpoint", "idle"))
    return waited / loops if waited else None


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
    money = goodput.money_of(total, estimate) if estimate else None
    return {
        "wall": total.wall,
        "goodput": total.goodput,
        "parts": [
            (each.name, each.colour, sum(total.seconds[state] for state in each.states))
            for each in accounts.PARTS
        ],
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
        raise errors.UsageError(
            f"{folder!r} is not a folder of a training. Write it like jobs/NAME"
        )
    store = Bucket(bucket, google.exchange)
    series: dict[str, dict[int, float]] = {}
    for file in _event_files(google, bucket, folder):
        found = store.read(file["name"])
        for tag, step, value in points(found[0] if found else b""):
            series.setdefault(tag, {})[step] = value
    return {tag: thinned(sorted(series[tag].items())) for tag in sorted(series)}


def thinned(curve: Sequence[tuple[int, float]]) -> Curve:
    """Return at most `_MOST_POINTS`, with the first, the last, and of each part lowest and highest.

    So no peak is lost, however many points there are.
    """
    if len(curve) <= _MOST_POINTS:
        return list(curve)
    parts = (_MOST_POINTS - 2) // 2
    kept = {0: curve[0], len(curve) - 1: curve[-1]}
    for part in range(parts):
        places = range(part * len(curve) // parts, (part + 1) * len(curve) // parts)
        for chosen in (min, max):
            place = chosen(places, key=lambda number: curve[number][1])
            kept[place] = curve[place]
    return [kept[place] for place in sorted(kept)]


def _event_files(google: Google, bucket: str, folder: str) -> list[Json]:
    """Return the newest event files that are small enough together, the oldest of them first.

    They are in the training's folder, or in one for each split. Their names begin with the time at
    which they were begun.
    """
    prefix = f"{folder}/"
    # The folder's own characters must match themselves alone.
    literal = re.sub(r"([\\*?\[\]{}])", r"\\\1", prefix)
    found = _matching(google, bucket, prefix, f"{literal}**events.out.tfevents.*")
    kept: list[Json] = []
    left = _MOST_BYTES
    for file in sorted(found, key=lambda file: file["name"].rpartition("/")[2], reverse=True):
        left -= int(file["size"])
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


# --- A bucket's objects.

_LIST = "https://storage.googleapis.com/storage/v1/b/{}/o"
_FIELDS = "items(name,generation,size),nextPageToken"


def _matching(google: Google, bucket: str, prefix: str, glob: str) -> Iterator[Json]:
    """Yield the objects below `prefix` that match a glob of Cloud Storage. Raises TpustackError."""
    query = {"prefix": prefix, "matchGlob": glob, "fields": _FIELDS}
    return google.pages(_LIST.format(quote(bucket, safe="")), "items", query)
