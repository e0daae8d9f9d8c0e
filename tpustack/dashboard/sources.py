"""What the page follows: stacks, TPUs, jobs and trainings, each read as often as it is worth it."""

from __future__ import annotations

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
from tpu_core.bucket import Bucket
from tpu_core.lease import DURATION
from tpustack.cloud.google import Google, Nodes
from tpustack.console import plain
from tpustack.dashboard.places import Json, Place
from tpustack.dashboard.trainings import Trainings
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import job as jobs
from tpustack.jobs.queue import RUNNERS, explained

_JOBS, _TPUS, _TRAININGS, _STACKS = 2.0, 3.0, 30.0, 300.0
# Fifty places must not mean fifty questions every two seconds.
_SECONDS_A_PLACE = 0.2
ABSENT = "ABSENT"
Zone = tuple[str, str]
"""A project and a zone."""


@dataclass(frozen=True)
class Source:
    """Something that the page shows a part of.

    Attributes:
        topic: the part.
        place: whose; empty for all.
        every: seconds between two reads.
        read: returns what is there now, and raises TpustackError.
    """

    topic: str
    place: str
    every: float
    read: Callable[[], list[Json]]

    def message(self) -> Json:
        """Return what is there now, or why that can't be told."""
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
        for zone, wanted in tpus_by_zone(places).items()
    ]
    for place in places:
        if place.bucket:
            found += _of_bucket(place, google, catalog, slow)
    return found


def _of_bucket(place: Place, google: Google, catalog: Catalog, slow: float) -> Iterator[Source]:
    queue = place.queue(google, lambda line: click.echo(plain(line), err=True))

    def read(what: Callable[[], list[Json]]) -> list[Json]:
        with explained(queue):
            return what()

    yield Source(
        "jobs", place.name, _JOBS * slow, partial(read, lambda: jobs.job_rows(queue.summaries()))
    )
    if place.settings is None:
        look = partial(tpus_of_bucket, queue.store)
        yield Source("tpus", place.name, _TPUS * slow, partial(read, look))
    estimate = of_stack(place.settings, place.name, catalog) if place.settings else None
    trainings = Trainings(google, place, estimate)
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
        "architecture": settings.architecture.value,
        "tpu": settings.tpu.accelerator_type,
        "capacity": settings.tpu.capacity.value,
        "jobs": settings.jobs.enabled,
        "hour": f"{hour.hour:f}",
        "complete": hour.complete,
    }


def drift(place: Place) -> Json:
    """Compare a stack's state with the cloud by the engine, which writes neither.

    Raises:
        UsageError: the place is no stack.
        TpustackError: there is no engine, or the backend can't be read.
    """
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


def tpus_by_zone(places: Iterable[Place]) -> dict[Zone, dict[str, Place]]:
    """Return the names of the TPUs that stacks should have, and whose they are."""
    stacks = [(place.settings, place) for place in places if place.settings]
    zones: dict[Zone, dict[str, Place]] = {}
    for settings, place in stacks:
        named = zones.setdefault((settings.project, settings.zone), {})
        for name in names_of(settings, place.name).tpus(settings.tpu.slices):
            named[name] = place
    return zones


def tpus_of_zone(google: Google, zone: Zone, wanted: Mapping[str, Place]) -> list[Json]:
    """Return the TPUs of a zone that stacks should have. Raises TpustackError."""
    nodes = Nodes(google, zone[0])
    return [_row(name, place, nodes) for name, place in sorted(wanted.items())]


def tpus_of_bucket(store: Bucket) -> list[Json]:
    """Return the TPUs on which machines run jobs, as their leases say. Raises GoogleError."""
    return [
        {
            "name": item.path.removeprefix(RUNNERS).removesuffix(".json"),
            "state": "IN USE" if item.age <= DURATION else "NO MACHINE",
            "seen": item.age,
        }
        for item in store.items(RUNNERS)
    ]


def _row(name: str, place: Place, nodes: Nodes) -> Json:
    settings = place.settings
    assert settings is not None, "only stacks have TPUs"
    # The agent may have moved it to another of the stack's zones.
    found = nodes.find(settings.tpu_zones, name)
    zone, node = found or (settings.zone, {"state": ABSENT})
    about = {"name": name, "place": place.name, "zone": zone, "state": node.get("state", "")}
    if found is None:
        return about
    return {
        **about,
        "type": node.get("acceleratorType", ""),
        "created": node.get("createTime"),
        "health": node.get("health", ""),
        "said": node.get("healthDescription", ""),
    }
