"""A TPU's time counts from the first of those that the agent has made in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Fault
from localcloud.services.tpu import nodes
from localcloud.testing import Client
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.limits import LimitEnforcer
from tpu_core.google import Json
from tpu_core.memory import birth
from tpu_core.tpu import Place

from .conftest import PARENT, PROJECT, TPU, ZONE, state
from .test_recovery import BODY, Agent, preempt, write

HOUR = 3600.0
LIMITS: dict[str, Any] = {"tpus": ["t"], "timeToLiveHours": 12.0, "recovery": {}}


class Limited(Agent):
    """The agent on a machine that trains, with recovery and limits."""

    limits = LIMITS
    request: str | None = None

    def start(self) -> None:
        super().start()
        self.enforcer = LimitEnforcer(
            Place(PROJECT, ZONE, "a-bucket"),
            FakeClient(lambda *sent: self.call(*sent)),
            lambda: True,
            self.clock.now,
            self.lines.append,
        )

    def lives(self, hours: float) -> bool:
        """Look every five minutes for so long; whether the time was up."""
        end = self.clock.now() + hours * HOUR
        while self.clock.now() < end:
            self.recovery.look(["t"], {"preemption": 99, "failure": 9}, self.request, 0.0, 12.0)
            if self.enforcer.look(self.limits):
                return True
            self.clock.advance(300.0)
        return False


@pytest.fixture
def agent(local_cloud: LocalCloud, google: Client, clock: VirtualClock) -> Limited:
    write(google, "agent/declaration.json", {"tpus": {"t": BODY}})
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    clock.advance(100.0)
    return Limited(local_cloud, clock)


def test_a_preemption_each_ten_hours_does_not_make_it_live_for_ever(
    agent: Limited, google: Client
) -> None:
    assert not agent.lives(10)
    preempt(agent)
    agent.start()
    assert agent.lives(2.1)
    assert state(google) in ("DELETING", "gone")
    assert agent.lines[-1] == "t is deleted: its 12 hours are over"


def test_a_request_lives_on_in_the_next_one(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock
) -> None:
    node = {key: value for key, value in BODY.items() if key != "schedulingConfig"}
    spec = {"parent": PARENT, "nodeId": "t", "node": node}
    body = {"tpu": {"nodeSpec": [spec]}, "spot": {}}
    write(google, "agent/declaration.json", {"tpus": {"q": body}})
    google.post(f"{TPU.replace('v2', 'v2alpha1')}/queuedResources", body, queuedResourceId="q")
    clock.advance(1200.0)
    agent = Limited(local_cloud, clock)
    agent.request, agent.limits = "q", LIMITS | {"request": "q"}
    assert not agent.lives(10)
    nodes.preempt(agent.cloud.cloud, f"{PARENT}/nodes/t")
    agent.start()
    assert not agent.lives(1)
    assert state(google) == "READY"
    assert agent.lives(1)


@pytest.mark.parametrize("how", ["the bucket refuses", "a job deletes it"])
def test_it_counts_so_also_once_what_the_agent_remembers_can_not_be_read(
    agent: Limited, google: Client, local_cloud: LocalCloud, how: str
) -> None:
    assert not agent.lives(10)
    preempt(agent)
    assert not agent.lives(1)
    if how == "a job deletes it":
        objects = "storage.googleapis.com/storage/v1/b/a-bucket/o"
        google.delete(f"{objects}/agent%2Fstate.json", status=204)
    else:
        local_cloud.cloud.faults.add(Fault("storage.*", status=403))
    agent.clock.advance(HOUR)
    assert agent.enforcer.look(LIMITS)
    assert state(google) in ("DELETING", "gone")


def test_a_memory_nested_too_deeply_to_read_ends_no_limit(agent: Limited, google: Client) -> None:
    write(google, "agent/state.json", "[" * 100_000)
    agent.clock.advance(13 * HOUR)
    assert agent.enforcer.look(LIMITS)


def test_what_is_deleted_already_since_its_time_is_up_turns_the_machine_off(
    agent: Limited,
) -> None:
    """The pipeline was faster, or the agent was killed after its call."""
    call, sent = agent.call, list[str]()

    def deleting(method: str, url: str, body: str | None) -> tuple[int, Json]:
        sent.append(method)
        status, answer = call(method, url, body)
        return status, answer | ({"state": "DELETING"} if "/nodes/t" in url else {})

    agent.call = deleting
    assert not agent.enforcer.look(LIMITS)
    agent.clock.advance(13 * HOUR)
    assert agent.enforcer.look(LIMITS)
    assert set(sent) == {"GET"}


def test_without_the_bucket_it_counts_from_its_own_creation_at_least(
    agent: Limited, google: Client, local_cloud: LocalCloud
) -> None:
    local_cloud.cloud.faults.add(Fault("storage.*", status=403))
    agent.clock.advance(11.9 * HOUR)
    assert not agent.enforcer.look(LIMITS)
    agent.clock.advance(HOUR)
    assert agent.enforcer.look(LIMITS)


@pytest.mark.parametrize("made", ["at once", "after the agent has seen it gone"])
def test_one_that_a_person_makes_lives_a_life_of_its_own(
    agent: Limited, google: Client, made: str
) -> None:
    assert not agent.lives(10)
    google.delete(f"{TPU}/nodes/t")
    if made != "at once":
        assert not agent.lives(0.5)
    agent.clock.advance(100.0)
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    assert not agent.lives(11)
    preempt(agent)
    assert agent.lives(1.1)


def test_it_is_not_recreated_once_its_time_is_up(
    agent: Limited, google: Client, local_cloud: LocalCloud
) -> None:
    assert not agent.lives(10)
    local_cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    preempt(agent)
    agent.lives(3)
    local_cloud.cloud.store.delete("setting", "stockout")
    agent.lives(1)
    assert state(google) == "gone"
    assert agent.lines[-1] == "t is not recreated: its 12 hours are over"
    assert agent.recovery.ended
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    assert not agent.lives(1)
    assert not agent.recovery.ended


def test_one_that_a_person_makes_while_the_agent_waits_to_lives_a_life_of_its_own(
    agent: Limited, google: Client, local_cloud: LocalCloud
) -> None:
    """The machine was deleted in between, so that the one before has not been forgotten."""
    assert not agent.lives(10)
    local_cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    preempt(agent)
    assert not agent.lives(1)
    agent.looks(20)
    local_cloud.cloud.store.delete("setting", "stockout")
    agent.clock.advance(100 * HOUR)
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    agent.start()
    assert not agent.enforcer.look(LIMITS)
    assert not agent.lives(11)


NODE: Json = {"name": "a/t", "createTime": "2026-11-02T12:00:00Z"}


@pytest.mark.parametrize(
    "state",
    [
        {"garbage": True},
        {"lives": {"t": {NODE["createTime"]: "soon"}}},
        {"lives": {"t": {NODE["createTime"]: -1e300}}},
        {"lives": {"t": {"another": 1.0}}},
        {"lives": {"t": [1]}, "remaking": {"t": {"declared": "", "born": float("nan")}}},
        json.loads('{"remaking": {"t": {"declared": "", "born": 1e16}}, "lives": "x"}'),
    ],
)
def test_what_is_no_birth_makes_no_tpu_younger_or_older(state: Json) -> None:
    assert birth(state, "t", NODE) == birth({}, "t", NODE)


def test_a_birth_after_the_tpus_creation_is_none() -> None:
    created = birth({}, "t", NODE)
    later = {NODE["createTime"]: created + 9}
    assert birth({"lives": {"t": later}}, "t", NODE) == created
