"""Sweeps that are killed at any call, or lose its answer, while a request deploys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import count, product
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from tests.unit.tpustack.conftest import recovery_of
from tpustack.ci import deployment, pipeline, sweep
from tpustack.ci.deployment import ready
from tpustack.ci.pipeline import PullRequests
from tpustack.ci.result import Outcome, Result, Run
from tpustack.engine.backend import Backend
from tpustack.errors import TpustackError
from tpustack.recovery.locks import LockedError

NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)
HOW = PullRequests(like="dev", project="requests", hours=2)
LIVES = {"main", "work"}
T = TypeVar("T")


class KilledError(BaseException):
    """The sweep was killed."""


@dataclass
class World:
    """A backend and its cloud. At one call of the sweep something happens; others work, too.

    Attributes:
        fault: what happens: a kill before or after the call, or its answer is lost.
        at: at which call.
        steps: what the others do, one at each call from `begin` on.
    """

    fault: str = ""
    at: int = -1
    begin: int = 0
    steps: Iterator[None] = field(default_factory=lambda: iter(()))
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    paid: set[str] = field(default_factory=set)
    locked: bool = False
    calls: int = 0

    def call(self, do: Callable[[], T]) -> T:
        """Carry out a call of the sweep."""
        number, self.calls = self.calls, self.calls + 1
        if number >= self.begin:
            next(self.steps, None)
        if (number, self.fault) == (self.at, "killed before"):
            raise KilledError
        done = do()
        if (number, self.fault) == (self.at, "killed after"):
            raise KilledError
        if (number, self.fault) == (self.at, "answer lost"):
            raise TpustackError("the answer is lost")
        return done

    def create(self, stack: str) -> None:
        assert stack not in self.tags
        self.tags[stack] = {}

    def tag(self, stack: str, **tags: str) -> None:
        self.known(stack).update(tags)

    def known(self, stack: str) -> dict[str, str]:
        """A stack's tags, or the engine's refusal."""
        if stack not in self.tags:
            raise TpustackError(f"no stack named {stack}")
        return self.tags[stack]

    def interrupted(self, stack: str) -> Any:
        self.known(stack)

    def unlocked(self) -> None:
        if self.locked:
            raise LockedError([])

    def clear(self, stack: str) -> Any:
        self.unlocked()
        self.known(stack)
        self.paid.discard(stack)
        return SimpleNamespace(failure="")

    def remove(self, stack: str) -> None:
        self.unlocked()
        self.known(stack)
        if stack in self.paid:
            raise TpustackError("refusing to remove stack because it still contains resources")
        del self.tags[stack]


def swept(world: World) -> list[Result]:
    def engine(stack: str) -> Any:
        return SimpleNamespace(
            clear=lambda line: world.call(lambda: world.clear(stack)),
            resources=list,
            recovery=lambda line, ended: recovery_of(
                interrupted=lambda: world.call(lambda: world.interrupted(stack)),
                ask_for_lock=lambda: world.call(world.unlocked),
                are_orphaned=lambda locks: False,
            ),
        )

    backend = SimpleNamespace(
        stacks=lambda: world.call(lambda: dict(world.tags)),
        tags=lambda stack: world.call(lambda: dict(world.known(stack))),
        remove=lambda stack: world.call(lambda: world.remove(stack)),
        stack=engine,
    )
    job = cast(Run, SimpleNamespace(backend=backend, line=lambda stack: print))
    return sweep.sweep(job, LIVES, NOW)


@pytest.fixture(autouse=True)
def plain_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "result_of", lambda stack, done: Result(stack, Outcome.CHANGES))


def deploys(world: World, stack: str, lost: list[str]) -> Iterator[None]:
    """A request deploys its stack: its calls, one after the other, as `ci deploy` makes them."""
    tags = pipeline.request_tags("work", HOW, NOW)
    try:
        known = stack in world.tags
        yield
        if not known:
            world.create(stack)
            yield
        for name, value in tags.items():
            world.tag(stack, **{name: value})
            yield
        world.unlocked()
        world.known(stack)
        world.locked = True
        yield
        world.paid.add(stack)
        yield
        world.locked = False
        yield
        if stack not in world.paid or stack not in world.tags:
            lost.append(stack)
    except (LockedError, TpustackError):
        # It is told so, before it has made anything, and runs again.
        assert stack not in world.paid


def scenes() -> Iterator[tuple[str, int, int, bool]]:
    for fault, at, begin in product(
        ("", "killed before", "killed after", "answer lost"), range(12), range(12)
    ):
        for made in (False, True):
            yield fault, at, begin, made


def test_an_interrupted_sweep_loses_no_live_stack_and_leaves_no_paid_resource() -> None:
    seen = count()
    for fault, at, begin, made in scenes():
        world, lost = World(fault, at, begin), list[str]()
        world.tags["pr-1"] = pipeline.request_tags("gone", HOW, NOW)
        world.paid.add("pr-1")
        if made:
            # What a deployment left that was killed before it noted anything.
            world.create("pr-2")
        world.steps = deploys(world, "pr-2", lost)
        try:
            swept(world)
        except (KilledError, TpustackError):
            next(seen)
        for _ in world.steps:
            pass
        calm = World(tags=world.tags, paid=world.paid)
        swept(calm)
        swept(calm)
        assert lost == []
        assert "pr-1" not in calm.tags.keys() | calm.paid, (fault, at, begin, made)
        assert calm.paid <= {
            stack for stack in calm.tags if pipeline.tags_are_complete(calm.tags[stack])
        }
    assert next(seen) > 100


def test_one_broken_stack_does_not_stop_the_sweep_of_others() -> None:
    world = World("answer lost", at=1)
    world.tags = {
        "pr-1": pipeline.request_tags("gone", HOW, NOW),
        "pr-2": {**pipeline.request_tags("work", HOW, NOW), pipeline.EXPIRES: "soon"},
        "pr-3": pipeline.request_tags("gone", HOW, NOW),
    }
    refused, damaged, gone = swept(world)
    assert (refused.problem, gone.outcome) == ("the answer is lost", Outcome.CHANGES)
    assert "'soon', which isn't a time" in damaged.problem
    assert world.tags.keys() == {"pr-1", "pr-2"}


def test_a_deployment_that_was_killed_before_it_noted_its_tags_notes_them_the_next_time() -> None:
    """Without them, the next sweep would take the stack for one that was never finished."""
    world = World()
    backend = cast(
        Backend,
        SimpleNamespace(
            create=world.create, tag=world.tag, tags=lambda stack: dict(world.known(stack))
        ),
    )
    tags = pipeline.request_tags("work", HOW, NOW)
    for noted in ({}, {pipeline.BRANCH: "work"}):
        world.tags = {"pr-1": dict(noted)}
        ready(backend, "pr-1", tags, known=True)
        assert world.tags == {"pr-1": tags}
    ready(backend, "pr-2", tags, known=False)
    assert world.tags["pr-2"] == tags
    # Its time is not put off by each push.
    ready(backend, "pr-2", {**tags, pipeline.EXPIRES: "later"}, known=True)
    assert world.tags["pr-2"] == tags
