"""What a limit has deleted comes back for the next job, and only for that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.jobs.runner import Tpus
from tpu_agent.limits import LimitEnforcer
from tpu_core.google import Json
from tpu_core.paths import WANTED
from tpu_core.tpu import Place

from .conftest import PROJECT, TPU, ZONE, state
from .test_recovery import BODY, Agent, described, write

POD: Json = {
    **BODY,
    "acceleratorType": "v6e-16",
    "runtimeVersion": "v2-alpha-tpuv6e",
    "schedulingConfig": {"spot": True},
}
LIMITS: dict[str, Any] = {"tpus": ["t"], "idleMinutes": 30}


class Stack(Agent):
    """The agent, with limits, and the runner of the jobs beside it."""

    def __init__(self, cloud: LocalCloud, clock: VirtualClock, google: Client) -> None:
        super().__init__(cloud, clock)
        self.google = google

    def start(self) -> None:
        super().start()
        place = Place(PROJECT, ZONE, "a-bucket")
        self.enforcer = LimitEnforcer(
            place,
            FakeClient(self.call),
            lambda: False,
            self.clock.now,
            self.lines.append,
            sleep=lambda: self.recovery.sleep(["t"], None),
        )
        self.tpus = Tpus(place, "t", self.call, self.want, is_here=False)

    def want(self) -> None:
        write(self.google, WANTED, {"at": self.clock.now()})

    def idles(self) -> None:
        """Nothing runs, and the TPU is deleted."""
        for _ in range(31):
            self.clock.advance(60.0)
            self.enforcer.look(LIMITS)
        self.looks(120)
        assert state(self.google) == "gone"

    def waits(self) -> None:
        """A job waits for the TPU, as the runner has it."""
        assert self.tpus.ready() is None
        self.tpus.wake()


@pytest.fixture
def stack(local_cloud: LocalCloud, google: Client, clock: VirtualClock) -> Stack:
    """A slice of several hosts, which can't be stopped."""
    write(google, "agent/declaration.json", {"tpus": {"t": POD}})
    labels = {**POD["labels"], "goog-pulumi-provisioned": "true"}
    google.post(f"{TPU}/nodes", POD | {"labels": labels}, nodeId="t")
    clock.advance(100.0)
    return Stack(local_cloud, clock, google)


def test_it_comes_back_as_it_was_once_a_job_waits_also_after_the_agent_was_killed(
    stack: Stack, google: Client
) -> None:
    before = described(google)
    stack.idles()
    stack.looks(3600)
    assert state(google) == "gone"
    stack.start()
    stack.waits()
    stack.looks(300)
    assert described(google) == before
    assert stack.lines[-2:][0] == "t is recreated: a job waits for it"
    assert "t is back after" in stack.lines[-1]
    assert stack.told == []


def test_a_look_between_the_note_and_the_deletion_forgets_no_note(
    stack: Stack, google: Client
) -> None:
    """Limits and recovery have a thread each, and Google shows a deletion late."""
    stack.recovery.sleep(["t"], None)
    stack.recovery.look(["t"], {})
    google.delete(f"{TPU}/nodes/t")
    stack.looks(120)
    stack.waits()
    stack.looks(300)
    assert state(google) == "READY"


def test_a_note_after_which_nothing_was_deleted_is_forgotten(
    stack: Stack, google: Client, clock: VirtualClock
) -> None:
    stack.recovery.sleep(["t"], None)
    clock.advance(600.0)
    stack.looks(60)
    google.delete(f"{TPU}/nodes/t")
    stack.looks(120)
    stack.waits()
    stack.looks(300)
    assert state(google) == "gone"


def test_a_wish_of_before_wakes_nothing(stack: Stack, google: Client) -> None:
    stack.want()
    stack.idles()
    stack.looks(600)
    assert state(google) == "gone"


def test_it_goes_to_sleep_again_and_is_wanted_again(stack: Stack, google: Client) -> None:
    for _ in range(2):
        stack.idles()
        stack.waits()
        stack.waits()
        stack.looks(300)
        assert state(google) == "READY"
        assert stack.tpus.ready() is not None
        stack.tpus.wake()


def test_what_the_stack_has_made_again_is_its_own_and_stays_deleted_by_a_person(
    stack: Stack, google: Client, clock: VirtualClock
) -> None:
    stack.idles()
    google.post(f"{TPU}/nodes", POD, nodeId="t")
    clock.advance(100.0)
    stack.looks(60)
    google.delete(f"{TPU}/nodes/t")
    clock.advance(100.0)
    stack.waits()
    stack.looks(600)
    assert state(google) == "gone"
    assert not any("is back" in line for line in stack.lines)


@pytest.mark.parametrize("wanted", ["{", '{"at": "soon"}', "[]"])
def test_a_damaged_wish_is_none(stack: Stack, google: Client, wanted: str) -> None:
    stack.idles()
    write(google, WANTED, wanted)
    stack.looks(600)
    assert state(google) == "gone"


def test_another_declaration_is_left_to_the_stack(stack: Stack, google: Client) -> None:
    stack.idles()
    write(google, "agent/declaration.json", json.dumps({"tpus": {"t": BODY}}))
    stack.waits()
    stack.looks(600)
    assert state(google) == "gone"
    assert "left to `pulumi up`" in stack.lines[-1]
