"""What the page follows: each source is read again and again, as often as it is worth it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from infra.catalog import Catalog
from infra.cost import of_stack
from tpustack.cloud.google import Google
from tpustack.dashboard import jobs, stacks, tpus
from tpustack.dashboard.places import Place
from tpustack.dashboard.trainings import Trainings
from tpustack.errors import TpustackError
from tpustack.inert import plain
from tpustack.jobs.place import explained

Json = dict[str, Any]
_JOBS, _TPUS, _TRAININGS, _STACKS = 2.0, 3.0, 30.0, 300.0
# Fifty places must not mean fifty questions every two seconds.
_SECONDS_A_PLACE = 0.2


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
    found = [Source("stacks", "", _STACKS, partial(_stacks, places, catalog))]
    found += [
        Source("tpus", "/".join(zone), _TPUS * slow, partial(tpus.of_zone, google, zone, wanted))
        for zone, wanted in tpus.by_zone(places).items()
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

    yield Source("jobs", place.name, _JOBS * slow, partial(read, partial(jobs.listed, queue)))
    if place.settings is None:
        look = partial(tpus.of_bucket, queue.store)
        yield Source("tpus", place.name, _TPUS * slow, partial(read, look))
    estimate = of_stack(place.settings, place.name, catalog) if place.settings else None
    trainings = Trainings(google, place, estimate)
    yield Source("trainings", place.name, _TRAININGS * slow, trainings.read)


def _stacks(places: Sequence[Place], catalog: Catalog) -> list[Json]:
    return [stacks.stack(place, catalog) for place in places]
