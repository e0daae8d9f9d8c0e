"""Where the dashboard looks: the buckets of stacks, or buckets by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from infra.names import names_of
from infra.settings import StackSettings
from tpu_agent.jobs.queue import Queue
from tpu_core.bucket import Bucket
from tpustack.cloud.google import Google
from tpustack.errors import UsageError
from tpustack.jobs.queue import bucket_of
from tpustack.stacks import all_stacks, load, require_file

Json = dict[str, Any]


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
        return Queue(Bucket(self.bucket, google.exchange), say)


def places(stacks: Sequence[str], buckets: Sequence[str]) -> list[Place]:
    """Return the places with these names; all stacks of the project if there are none.

    Raises:
        UsageError: with everything that is wrong with the names.
    """
    problems: list[str] = []
    found = list(_each(buckets, problems, lambda url: Place(bucket_of(url), bucket_of(url))))
    if stacks or not buckets:
        names = stacks or all_stacks()
        found += _each(names, problems, _of_stack if not stacks else _of_named)
    if problems:
        raise UsageError("\n".join(problems))
    return list({place.name: place for place in found}.values())


def _each(
    names: Sequence[str], problems: list[str], make: Callable[[str], Place]
) -> Iterator[Place]:
    for name in names:
        try:
            yield make(name)
        except UsageError as error:
            problems.append(str(error))


def _of_named(stack: str) -> Place:
    require_file(stack)
    return _of_stack(stack)


def _of_stack(stack: str) -> Place:
    """Return a stack's place; one wrong file must not hide all other stacks."""
    try:
        settings = load(stack)
    except UsageError as error:
        return Place(stack, "", problem=str(error))
    return Place(stack, names_of(settings, stack).bucket, settings)
