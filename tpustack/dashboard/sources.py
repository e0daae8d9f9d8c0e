"""What the page shows: stacks, TPUs, jobs and trainings of the places that it looks into.

Each is a `Source`, read as often as its answer may change and its calls are worth their price.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from infra.catalog import Catalog
from infra.cost import of_stack
from infra.names import names_of
from infra.settings import StackSettings
from tpu_agent.jobs.queue import Queue
from tpu_core import lease
from tpu_core.google import Json
from tpustack import stacks
from tpustack.cloud.google import Google, Nodes
from tpustack.console import plain
from tpustack.dashboard.trainings import Trainings
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs.job import job_rows
from tpustack.jobs.queue import RUNNERS, bucket_of, explained, queue_of

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
            except UsageError as error:
                problems.append(str(error))

    found = list(each(buckets, lambda url: Place(bucket_of(url), bucket_of(url))))
    if named:
        found += each(named, of_named)
    elif not buckets:
        found += each(stacks.all_stacks(), _of_stack)
    if problems:
        raise UsageError("\n".join(problems))
    return list({place.name: place for place in found}.values())


def _of_stack(stack: str) -> Place:
    """Return a stack's place; one wrong file must not hide all other stacks."""
    try:
        settings = stacks.load(stack)
    except UsageError as error:
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
        except TpustackError as error:
            problem = str(error)
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
    queue = place.queue(google, lambda line: click.echo(plain(line), err=True))

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
        raise UsageError(f"{place.name} is a bucket, not a stack: only a stack has a state")
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
    nodes = Nodes(google, zone[0])
    return [_row(name, place, nodes) for name, place in sorted(wanted.items())]


def _row(name: str, place: Place, nodes: Nodes) -> Json:
    settings = place.settings
    assert settings is not None, "only stacks have TPUs"
    # The agent may have moved it to another of the stack's zones.
    found = nodes.find(settings.tpu_zones, name)
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
