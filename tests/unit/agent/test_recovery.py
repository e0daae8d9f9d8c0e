"""A TPU that is lost is recreated as the stack declares it, whatever happens on the way."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Fault, Latency
from localcloud.services.tpu import nodes
from localcloud.testing import Client
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.recovery import Recovery, World
from tpu_core.google import Call, Json
from tpu_core.tpu import Place

from .conftest import DAY, PARENT, PROJECT, TPU, ZONE, Killed, caller, deadly, state

BODY = {
    "acceleratorType": "v2-8",
    "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt",
    "networkConfig": {"network": "default", "enableExternalIps": True},
    "schedulingConfig": {"preemptible": True},
    "labels": {"tpu-stack": "test", "tpu-stack-mark": "abc"},
    "metadata": {"tpu-name": "t"},
}
BUDGETS = {"preemption": 48, "failure": 10}
NODE = f"{PARENT}/nodes/t"


@pytest.fixture
def latency() -> Latency:
    """A TPU takes 90 s to come and 45 s to go."""
    return "real"


class Agent:
    """The agent's program, which may be killed and started again."""

    def __init__(self, cloud: LocalCloud, clock: VirtualClock) -> None:
        self.cloud, self.clock = cloud, clock
        self.call: Call = caller(cloud)
        self.silent: dict[str, str] = {}
        self.lines: list[str] = []
        self.told: list[str] = []
        self.start()

    def start(self) -> None:
        told = self.told.append
        world = World(self.clock.now, self.lines.append, self._silent, lambda: 0.5, told)
        place = Place(PROJECT, ZONE, "a-bucket")
        self.recovery = Recovery(place, FakeClient(lambda *sent: self.call(*sent)), world)

    def looks(
        self, seconds: float, until: Callable[[], bool] = lambda: False, **budgets: int
    ) -> None:
        """Look every ten seconds for so long."""
        end = self.clock.now() + seconds
        while not until() and self.clock.now() < end:
            self.recovery.look(["t"], BUDGETS | budgets)
            self.clock.advance(10.0)

    def _silent(self, host: str, port: int) -> str | None:
        return self.silent.get("all")


@pytest.fixture
def agent(local_cloud: LocalCloud, google: Client, clock: VirtualClock) -> Agent:
    """A stack whose TPU is READY, with a label that Google's provider has added."""
    write(google, "agent/declaration.json", {"tpus": {"t": BODY}})
    labels = {**BODY["labels"], "goog-pulumi-provisioned": "true"}  # type: ignore[dict-item]
    google.post(f"{TPU}/nodes", BODY | {"labels": labels}, nodeId="t")
    clock.advance(100.0)
    assert state(google) == "READY"
    return Agent(local_cloud, clock)


def write(google: Client, path: str, content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    url = "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    query = {"uploadType": "media", "name": path}
    google.session.post(url, params=query, data=text, timeout=30).raise_for_status()


def objects(google: Client, prefix: str = "agent/") -> list[str]:
    found = google.get("storage.googleapis.com/storage/v1/b/a-bucket/o", prefix=prefix)
    return [item["name"] for item in found.get("items", [])]


def described(google: Client) -> Json:
    """What a refresh compares: all that does not differ between two TPUs of one declaration."""
    node = google.get(f"{TPU}/nodes/t")
    passing = ("createTime", "networkEndpoints", "id", "healthDescription")
    return {key: value for key, value in node.items() if key not in passing}


def preempt(agent: Agent) -> None:
    nodes.preempt(agent.cloud.cloud, NODE)


def test_a_preempted_tpu_is_deleted_and_recreated_with_everything_it_had(
    agent: Agent, google: Client, clock: VirtualClock
) -> None:
    before = described(google)
    preempt(agent)
    begun = clock.now()
    agent.looks(600, until=lambda: state(google) == "READY")
    assert described(google) == before
    # 45 s to delete, 90 s to create, and a look every 10 s.
    assert clock.now() - begun <= 45 + 90 + 30
    agent.looks(20)
    assert agent.lines == [
        "t is deleted and recreated: it is PREEMPTED",
        f"t is back after {clock.now() - begun - 20:.0f} s",
    ]


def test_it_hurries_while_google_works_and_not_while_it_has_to_wait(
    agent: Agent, google: Client, local_cloud: LocalCloud
) -> None:
    def hurries() -> bool:
        return agent.recovery.hurries

    assert not hurries()
    local_cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    preempt(agent)
    agent.looks(10)
    assert hurries()
    agent.looks(600, until=lambda: not hurries())
    assert "stock-out" in agent.lines[-1]
    agent.looks(900)
    assert not hurries()
    local_cloud.cloud.store.put("setting", "stockout", {})
    agent.looks(1800, until=lambda: state(google) == "READY")
    agent.looks(20)
    assert not hurries()


def test_a_healthy_tpu_is_left_alone(agent: Agent, google: Client) -> None:
    agent.looks(3600)
    assert agent.lines == []
    assert objects(google) == ["agent/declaration.json", "agent/state.json"]


def test_a_tpu_that_is_preempted_while_it_is_created_is_recreated_once_more(
    agent: Agent, google: Client, clock: VirtualClock
) -> None:
    preempt(agent)
    agent.looks(600, until=lambda: state(google) == "CREATING")
    preempt(agent)
    agent.looks(900, until=lambda: state(google) == "READY")
    assert state(google) == "READY"


def test_a_creation_that_does_not_end_is_tried_again_after_an_hour(
    agent: Agent, google: Client
) -> None:
    """It counts as a failure; one that this agent has not begun is left alone."""
    stuck = True
    call = agent.call

    def unfinished(method: str, url: str, body: str | None) -> tuple[int, Json]:
        status, answer = call(method, url, body)
        if stuck and method == "GET" and answer.get("state") == "READY":
            answer["state"] = "CREATING"
        return status, answer

    agent.call = unfinished
    agent.looks(2 * 3600)
    assert agent.lines == []
    preempt(agent)
    agent.looks(3600)
    assert len(agent.lines) == 1
    agent.looks(600)
    assert agent.lines[1:] == ["t is deleted and recreated: it is still CREATING after 60 minutes"]
    stuck = False
    agent.looks(600)
    assert agent.lines[-1].startswith("t is back after")


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("stockout", {ZONE: ["*"]}, "t is not created yet: stock-out (There is no more capacity"),
        (
            "quota",
            {"TPUV2sPreemptiblePerProjectPerZoneForTPUAPI": 0},
            "t is not created yet: quota (",
        ),
    ],
)
def test_what_is_short_is_told_apart_and_tried_again_with_pauses(
    agent: Agent, google: Client, clock: VirtualClock, setting: str, value: Any, said: str
) -> None:
    agent.cloud.cloud.store.put("setting", setting, value)
    calls = 0
    call = agent.call

    def counted(method: str, url: str, body: str | None) -> tuple[int, Json]:
        nonlocal calls
        calls += method == "POST" and "nodes?nodeId" in url
        return call(method, url, body)

    agent.call = counted
    preempt(agent)
    agent.looks(4 * 3600)
    assert said in agent.lines[1]
    assert len(agent.lines) == 2
    assert 10 < calls < 60, "neither given up nor hammered"
    agent.cloud.cloud.store.delete("setting", setting)
    agent.looks(900, until=lambda: state(google) == "READY")
    assert state(google) == "READY"


def test_a_tpu_that_is_ready_but_dead_is_recreated_after_five_minutes(
    agent: Agent, google: Client, clock: VirtualClock
) -> None:
    agent.looks(60)
    created = google.get(f"{TPU}/nodes/t")["createTime"]
    agent.silent["all"] = "connection refused"
    agent.looks(250)
    assert google.get(f"{TPU}/nodes/t")["createTime"] == created
    agent.looks(100)
    agent.silent.clear()
    assert "is READY, but" in agent.lines[0]
    assert "does not answer (connection refused)" in agent.lines[0]
    agent.looks(600, until=lambda: state(google) == "READY")
    assert google.get(f"{TPU}/nodes/t")["createTime"] != created


def test_a_tpu_that_is_ready_and_answers_is_recreated_when_the_trainer_says_that_it_hangs(
    agent: Agent, google: Client
) -> None:
    def renew() -> None:
        agent.recovery.renew(["t"], BUDGETS, None, "the trainer hung 2 times in a row")

    created = google.get(f"{TPU}/nodes/t")["createTime"]
    renew()
    # An agent that was killed before it could note that it has done so repeats it.
    renew()
    assert agent.lines == [
        "t is deleted and recreated: it is READY, but the trainer hung 2 times in a row"
    ]
    agent.looks(600, until=lambda: state(google) == "READY")
    assert google.get(f"{TPU}/nodes/t")["createTime"] != created
    memory = "storage.googleapis.com/storage/v1/b/a-bucket/o/agent%2Fstate.json"
    assert [event["kind"] for event in google.get(memory, alt="media")["events"]] == ["failure"]


def test_budgets_of_preemptions_and_failures_are_separate(agent: Agent, google: Client) -> None:
    agent.looks(60)
    agent.silent["all"] = "connection refused"
    agent.looks(900, failure=0)
    assert "the budget of 0 a day (failure) is used up" in agent.lines[-1]
    assert agent.told == [f"{agent.lines[-1]}\ngs://a-bucket"]
    assert state(google) == "READY"
    preempt(agent)
    agent.looks(100, failure=0)
    assert state(google) in ("DELETING", "gone", "CREATING")


def test_a_tpu_of_the_same_name_that_is_not_this_stacks_is_never_deleted(
    agent: Agent, google: Client
) -> None:
    other = BODY | {"labels": {"tpu-stack-mark": "other"}}
    google.call("DELETE", f"{TPU}/nodes/t")
    agent.clock.advance(60.0)
    google.post(f"{TPU}/nodes", other, nodeId="t")
    agent.clock.advance(100.0)
    preempt(agent)
    agent.looks(600)
    assert state(google) == "PREEMPTED"
    assert agent.lines == ["t is not labeled as this stack's: left alone"]


def test_what_takes_the_name_of_a_tpu_that_is_being_recreated_is_not_taken_for_it(
    agent: Agent, google: Client
) -> None:
    preempt(agent)
    agent.looks(600, until=lambda: state(google) == "gone")
    google.post(f"{TPU}/nodes", BODY | {"labels": {"tpu-stack-mark": "other"}}, nodeId="t")
    agent.silent["all"] = "connection refused"
    agent.looks(3600)
    assert state(google) == "READY"
    assert agent.lines[1:] == ["t is not labeled as this stack's: left alone"]


def test_a_tpu_that_someone_deletes_stays_deleted(agent: Agent, google: Client) -> None:
    """Such as `pulumi destroy`."""
    google.call("DELETE", f"{TPU}/nodes/t")
    agent.looks(600)
    assert state(google) == "gone"
    assert agent.lines == []


@pytest.mark.parametrize(
    "declaration",
    [
        None,
        '{"format": 2, "tpus": {"t": {}}}',
        *("{", "[]", '{"tpus": 1}', '{"tpus": {}}', '{"tpus": {"t": 1}}'),
        '{"tpus": {"t": {"tpu": {"nodeSpec": [{}]}}}}',
    ],
)
def test_without_a_sound_declaration_nothing_is_deleted(
    agent: Agent, google: Client, declaration: str | None
) -> None:
    if declaration is None:
        objects = "storage.googleapis.com/storage/v1/b/a-bucket/o"
        google.delete(f"{objects}/agent%2Fdeclaration.json", status=204)
    else:
        write(google, "agent/declaration.json", declaration)
    preempt(agent)
    agent.looks(100)
    assert state(google) == "PREEMPTED"
    (line,) = agent.lines
    assert "`pulumi up` to write it" in line


def test_a_stack_that_changes_meanwhile_wins(agent: Agent, google: Client) -> None:
    preempt(agent)
    agent.looks(10)
    write(google, "agent/declaration.json", {"tpus": {"t": BODY | {"acceleratorType": "v3-8"}}})
    agent.looks(600)
    assert state(google) == "gone"
    assert agent.lines[-1] == "t is left to `pulumi up`, because the stack has changed"


REMEMBERED: Json = {
    **dict.fromkeys(("cause", "declared"), ""),
    **dict.fromkeys(("since", "tries", "notBefore"), 0),
    **dict.fromkeys(("created", "operation")),
    "labels": {},
}


@pytest.mark.parametrize(
    "garbage",
    [
        {"remaking": {"t": 1}},
        {"format": 1, "remaking": {}, "lives": {}, "events": [{"kind": "failure", "at": "noon"}]},
        {"remaking": {"t": {**REMEMBERED, "notBefore": "soon"}}, "events": []},
        {"remaking": {"t": {**REMEMBERED, "tries": None}}, "events": []},
    ],
)
def test_what_can_not_be_read_in_the_agents_memory_is_put_aside(
    agent: Agent, google: Client, garbage: object
) -> None:
    write(google, "agent/state.json", garbage)
    preempt(agent)
    agent.looks(600, until=lambda: state(google) == "READY")
    assert state(google) == "READY"
    damaged, reason = objects(google, "rejected/agent/state.json-")
    assert reason == f"{damaged}.reason"
    assert f"agent/state.json is set aside as {damaged}: format " in agent.lines[0]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": None, "later": {}},
        {"events": None},
        {"lives": {"t": 1}},
        {"events": [{"kind": "failure", "at": float("nan")}]},
        {"format": 2, "remaking.later": 1},
    ],
)
def test_a_tpu_that_was_deleted_to_be_recreated_outlives_a_memory_of_another_release(
    agent: Agent, google: Client, change: Json
) -> None:
    preempt(agent)
    agent.looks(600, until=lambda: state(google) == "gone")
    url = "storage.googleapis.com/storage/v1/b/a-bucket/o/agent%2Fstate.json"
    content = google.get(url, alt="media")
    for key, value in change.items():
        part = content["remaking"]["t"] if "." in key else content
        part[key.rpartition(".")[2]] = value
    write(google, "agent/state.json", content)
    agent.start()
    agent.looks(600, until=lambda: state(google) == "READY")
    assert state(google) == "READY"
    assert len(objects(google, "rejected/")) == 2


@pytest.mark.parametrize("state", [None, "", "MOONED"])
def test_a_state_that_is_unknown_or_that_google_leaves_out_is_left_alone(
    agent: Agent, google: Client, state: str | None
) -> None:
    call = agent.call

    def strange(method: str, url: str, body: str | None) -> tuple[int, Json]:
        status, answer = call(method, url, body)
        known = {key: value for key, value in answer.items() if key != "state"}
        return status, known | ({} if state is None else {"state": state})

    agent.call = strange
    agent.looks(600)
    shown = state or "STATE_UNSPECIFIED"
    assert agent.lines == [f"t is in the unknown state {shown}: left alone"]


@pytest.mark.parametrize("wrong", [-5 * DAY, -7200.0, 7200.0, 5 * DAY])
def test_a_clock_that_is_wrong_or_set_right_holds_nothing_up(
    agent: Agent, google: Client, clock: VirtualClock, wrong: float
) -> None:
    """It is wrong while a TPU is lost and can't be made, and right again when it can."""
    world = World(lambda: clock.now() + wrong, agent.lines.append, agent._silent, lambda: 0.5)
    place = Place(PROJECT, ZONE, "a-bucket")
    agent.recovery = Recovery(place, FakeClient(lambda *sent: agent.call(*sent)), world)
    agent.cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    preempt(agent)
    agent.looks(3600, preemption=1)
    agent.cloud.cloud.store.delete("setting", "stockout")
    agent.start()
    agent.looks(900, until=lambda: state(google) == "READY", preemption=1)
    agent.looks(20)
    assert state(google) == "READY"
    if wrong > 0:
        # What lies in the future spends no budget.
        preempt(agent)
        agent.looks(10, preemption=1)
        agent.looks(900, until=lambda: state(google) == "READY", preemption=1)
        assert state(google) == "READY"


@pytest.mark.parametrize("seed", range(5))
def test_it_survives_being_killed_at_any_point(agent: Agent, google: Client, seed: int) -> None:
    """Twenty kills, before or after a call has reached Google, in one recovery after another."""
    before, chance, call = described(google), random.Random(seed), agent.call

    kills = 0
    while kills < 20:
        agent.call = call
        agent.looks(600, until=lambda: state(google) == "READY")
        agent.looks(10)
        preempt(agent)
        agent.call = deadly(call, chance, 0.2)
        for _ in range(40):
            try:
                agent.looks(10)
            except Killed:
                kills += 1
                agent.start()
    agent.call = call
    agent.looks(600, until=lambda: state(google) == "READY")
    assert described(google) == before


def test_an_api_that_fails_for_a_while_is_asked_again(agent: Agent, google: Client) -> None:
    agent.cloud.cloud.faults.add(Fault("tpu.*", status=503, probability=0.5))
    preempt(agent)
    for _ in range(100):
        try:
            agent.looks(10)
        except OSError:
            agent.clock.advance(10.0)
    agent.cloud.cloud.faults.clear()
    agent.looks(1200, until=lambda: state(google) == "READY")
    assert state(google) == "READY"
