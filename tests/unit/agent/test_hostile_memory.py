"""The agent's memory is in a bucket that every job on the machine may write, and another agent."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Fault
from localcloud.testing import Client
from tpu_core.google import Json

from .conftest import PARENT, TPU, Killed, state
from .test_recovery import BODY, Agent, described, preempt, write

STATE = "storage.googleapis.com/storage/v1/b/a-bucket/o/agent%2Fstate.json"


@pytest.fixture
def agent(local_cloud: LocalCloud, google: Client, clock: VirtualClock) -> Agent:
    write(google, "agent/declaration.json", {"tpus": {"t": BODY}})
    labels: Json = {**BODY["labels"], "goog-pulumi-provisioned": "true"}  # type: ignore[dict-item]
    google.post(f"{TPU}/nodes", BODY | {"labels": labels}, nodeId="t")
    clock.advance(100.0)
    return Agent(local_cloud, clock)


@pytest.mark.parametrize(
    "forged",
    [
        {"zone": "europe-west4-a"},
        {"zone": "x/../../../projects/other/locations/us-central1-a"},
        {"labels": {"tpu-stack": "other", "goog-pulumi-provisioned": "x", "team": "other"}},
        {"operation": "../../projects/other/locations/us-central1-a/operations/../nodes/t"},
        {"operation": "operations/1?x=/../a"},
    ],
)
def test_what_a_job_writes_into_it_decides_neither_where_nor_what_the_agent_makes(
    agent: Agent, google: Client, forged: Json
) -> None:
    before = described(google)
    preempt(agent)
    agent.looks(600, until=lambda: state(google) == "gone")
    content = google.get(STATE, alt="media")
    content["remaking"]["t"] |= forged
    write(google, "agent/state.json", content)
    agent.start()
    call, asked = agent.call, list[str]()

    def recorded(method: str, url: str, body: str | None) -> tuple[int, Json]:
        if "tpu.googleapis.com" in url:
            asked.append(urlsplit(url).path)
        return call(method, url, body)

    agent.call = recorded
    agent.looks(1200, until=lambda: state(google) == "READY")
    assert all(path.removeprefix("/v2/").startswith(f"{PARENT}/") for path in asked)
    assert not any(".." in path for path in asked)
    assert described(google) == before


def test_of_two_agents_one_recreates_the_tpu_and_neither_brings_a_deleted_one_back(
    agent: Agent, google: Client, local_cloud: LocalCloud, clock: VirtualClock
) -> None:
    other = Agent(local_cloud, clock)
    preempt(agent)
    made = 0

    def counting(agent: Agent) -> None:
        call = agent.call

        def counted(method: str, url: str, body: str | None) -> tuple[int, Json]:
            nonlocal made
            status, answer = call(method, url, body)
            made += method == "POST" and "nodeId=" in url and status == 200
            return status, answer

        agent.call = counted

    counting(agent)
    counting(other)
    for _ in range(60):
        for each in (agent, other):
            with contextlib.suppress(OSError):
                each.recovery.look(["t"], {"preemption": 9, "failure": 9})
        clock.advance(10.0)
    assert (state(google), made) == ("READY", 1)
    # One of them knows of nothing that the other has done since.
    preempt(agent)
    agent.looks(600, until=lambda: state(google) == "gone")
    other.start()
    assert other.recovery._memory.remaking
    agent.looks(600, until=lambda: state(google) == "READY")
    agent.looks(10)
    google.delete(f"{TPU}/nodes/t")
    clock.advance(100.0)
    for _ in range(10):
        with contextlib.suppress(OSError):
            other.looks(10)
        clock.advance(10.0)
    assert (state(google), made) == ("gone", 2)


def test_a_memory_whose_answer_was_lost_is_the_agents_own(
    agent: Agent, google: Client, local_cloud: LocalCloud
) -> None:
    before = described(google)
    fault = Fault("*", status=0, carried_out=True, probability=0.3)
    preempt(agent)
    local_cloud.cloud.faults.add(fault)
    for _ in range(60):
        with contextlib.suppress(OSError):
            agent.looks(10)
        agent.clock.advance(10.0)
    local_cloud.cloud.faults.clear()
    agent.looks(600, until=lambda: state(google) == "READY")
    agent.looks(10)
    assert described(google) == before
    events = google.get(STATE, alt="media")["events"]
    assert [event["kind"] for event in events] == ["preemption"]


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_each_call_in_turn_leaves_one_tpu_with_another_agent_at_work(
    agent: Agent, google: Client, local_cloud: LocalCloud, clock: VirtualClock, after: bool
) -> None:
    """The call has reached Google or not, and the second machine looks in between."""
    before, call = described(google), agent.call
    other = Agent(local_cloud, clock)
    calls, last = 0, 0

    def deadly(method: str, url: str, body: str | None) -> tuple[int, Any]:
        nonlocal calls
        calls += 1
        if calls == last and not after:
            raise Killed
        answer = call(method, url, body)
        if calls == last:
            raise Killed
        return answer

    for last in range(1, 25):
        preempt(agent)
        agent.call, calls = deadly, 0
        for _ in range(4):
            with contextlib.suppress(Killed, OSError):
                agent.looks(10)
            if calls >= last:
                agent.start()
            with contextlib.suppress(OSError):
                other.looks(10)
        agent.call = call
        for _ in range(60):
            with contextlib.suppress(OSError):
                agent.looks(10)
            if state(google) == "READY":
                break
        assert state(google) == "READY", last
        other.start()
    assert described(google) == before
    assert json.dumps(google.get(STATE, alt="media")["remaking"]) == "{}"
